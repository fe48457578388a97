"""Edits that make a model smaller or faster, one per file; ``edits.py`` is their table."""
