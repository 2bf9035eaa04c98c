"""Collectives as the textbooks tell them, and a bench that measures them beside torch's.

The all-reduces here are to be read and measured; training uses torch's. Like all code that works on
one axis they take `World.group`'s word: no group is a group of one rank, and nothing is sent.
"""
