"""Objects as the API server stores them: msgspec structs that all readers share.

`custom` is generated from the models of `drumline_api`, `builtin` declares the fields that are read
of kinds of Kubernetes and of others. Nothing here imports pydantic: a CLI that lists a thousand
jobs takes less time than that import.
"""
