"""The laboratory: what textbooks state about vision transformers, put to the test.

One file in ``claims/`` is one claim: its statement, its prediction, its measurement. The verdict follows from numbers.
"""
