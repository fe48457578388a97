"""Blocks compiled by Inductor, kept on disk, and loaded without a compiler."""
