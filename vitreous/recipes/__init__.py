"""Built-in recipes: one reproducible run per file."""
