"""Networks on trees: aggregators, cells, encoders, heads."""
