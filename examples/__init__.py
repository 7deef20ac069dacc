"""Programs that show uses of treefold; run one with --help to see its options."""
