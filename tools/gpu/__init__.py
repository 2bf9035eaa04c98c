"""`make gpu`: every check that needs a GPU, on a machine with 1 to 8 of them.

A check is a run of the trainer as users start it, and what must be true of its figures. The same
checks run on processors (`--device cpu`), smaller: so they are no code that nobody has run.
"""
