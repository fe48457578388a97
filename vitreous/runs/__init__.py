"""Training runs: find or choose a recipe, prepare data and model, check, train, and record the results."""
