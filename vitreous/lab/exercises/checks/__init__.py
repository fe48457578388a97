"""Checks of the answers: a module per exercise, with ``check_…`` functions run in order.

A check receives the learner's functions by the names of its parameters. It returns nothing if they pass and otherwise
raises :class:`~vitreous.lab.exercises.checking.Wrong` with a message that says what is wrong and how to fix it.
"""
