"""Buckets of S3 and GCS, as far as the trainer needs them: `objects` below a prefix, `path` one.

`failures` says what a store answers as an error of which a person knows what to do. No torch.
"""
