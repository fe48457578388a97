"""One file, one reproducible run."""
