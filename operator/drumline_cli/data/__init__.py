"""`drumline data`: what a run would make of records, told by the trainer. Imports no trainer.

Start reading at `command`.
"""
