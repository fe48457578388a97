"""The laboratory: textbook claims about vision transformers, tested by experiment.

Each file in ``claims/`` is one claim: its statement, its predictions and its measurement. The verdict is computed from
the numbers.
"""
