"""Data of the experiments, one module each: generated from a seed, or read from the files that a user has."""
