"""How to learn: the loop and its parts. Nothing here knows a concrete model or task."""
