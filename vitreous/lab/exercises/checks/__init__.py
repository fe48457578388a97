"""What is asked of an answer: a module for each exercise, a ``check_…`` function for each question, in order.

A check takes what it needs from the learner's file by the names of its parameters, passes in silence, and otherwise
raises :class:`~vitreous.lab.exercises.checking.Wrong` with a message that says what is wrong and where to look.
"""
