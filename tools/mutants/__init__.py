"""Small faults put into the scheduler or the trainer, one at a time, to see whether a test notices.

`make mutants`: a seeded sample of the areas of a `Target`. Every fault runs in a process
of its own, forked from one that has collected the tests, against those that reach the function with
the fault. What survives is listed with its line; `survivors` says of some why no decision differs.
"""
