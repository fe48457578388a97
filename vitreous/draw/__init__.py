"""Matplotlib figures drawn from evidence."""
