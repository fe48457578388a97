"""What the ways of running a model have in common."""

from __future__ import annotations


class Unfit(ValueError):
    """Why an engine cannot run this model on this machine, in one line; another engine is tried."""
