"""The mathematics below the aggregators."""
