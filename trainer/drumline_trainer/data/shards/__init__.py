"""Token shards: their index, the stores that hold their files, reading them and writing them.

A store is a folder (`folder_store`) or an S3-compatible bucket (`s3_store`). Every byte is verified
against the index before it is used.
"""
