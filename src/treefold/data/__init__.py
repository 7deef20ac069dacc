"""Data sets: files, readers and generators."""
