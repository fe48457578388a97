"""Hostile input of every kind through the command line: each ends in an answer or in one line that says what is wrong.

A kind of input is a file with a generator that writes files and returns the words of a command; ``kinds.py`` is their
table. Case ``index`` of ``seed`` is always the same, so that ``--seed 7 --only weights:31`` shows one again.
"""
