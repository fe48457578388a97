"""Reading and writing weights: files of ours, files of others, and the well-known public ones by name."""
