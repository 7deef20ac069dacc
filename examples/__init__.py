"""Examples: complete programs that use treefold."""
