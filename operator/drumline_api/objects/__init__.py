"""Define objects as the API server stores them: msgspec structs that all readers share.

`custom` is generated from the models of `drumline_api`. `builtin` and `storage` declare the fields
that are read of other kinds. Nothing here imports pydantic, because that import takes longer than
listing a thousand jobs.
"""
