"""Programs that show what treefold is used for; each runs on its own and has --help."""
