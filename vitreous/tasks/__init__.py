"""What a model is trained for: a loss for a batch, measures for a whole set."""
