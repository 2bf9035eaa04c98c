"""`drumline doctor`: what of a cluster would keep training jobs from running, and what to do.

`reading` asks the API server and makes `facts`; the modules of `checks` are pure functions from
facts to results; `text` and `json_output` render them.
"""
