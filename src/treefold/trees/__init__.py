"""Trees, forests of them, and batches."""
