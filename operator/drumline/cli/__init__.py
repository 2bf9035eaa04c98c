"""What people type: `drumline report JOB`, and as a plugin `kubectl drumline report JOB`.

A job is read once, from the API server or from files, and becomes a `story.Story`: a value with
every figure and sentence that is shown. The renderers (`text`, `page`) only lay it out, so that all
of them say the same. What comes from a job is tenant input: `figures.plain` takes out what a
terminal would obey, `page` escapes what a browser would.

Nothing here imports Kopf, writes to the cluster, or loads before it is needed: `--help` answers
with the standard library alone.
"""
