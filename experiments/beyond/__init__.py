"""What the forms beyond the paper reach on its tasks, and which of their parts they need: `python -m experiments.beyond`."""
