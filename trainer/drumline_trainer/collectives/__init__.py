"""Textbook algorithms of collectives, and a benchmark that compares them with torch's.

The all-reduces here are for reading and measuring; training uses torch's. As with `World.group`, a
group of None is a group of one rank, which sends nothing.
"""
