"""The training loop and its parts, independent of any particular model or task."""
