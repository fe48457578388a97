"""Blocks compiled by Inductor, cached on disk, and loaded without a compiler."""
