"""What a trained model does and contains: evaluation, predictions, explanations, description, and baselines."""
