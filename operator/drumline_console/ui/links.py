"""Build the links within the page."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from drumline_addons.archive.layout import EndedPath


def job_path(job: str) -> str:
    """Return the path from the overview to the page of `namespace/name`."""
    namespace, _, name = job.partition("/")
    return f"job/{quote(namespace, safe='')}/{quote(name, safe='')}"


def action_path(name: str, action: str) -> str:
    """Return the path from a job's page to one of its actions."""
    return f"{quote(name, safe='')}/{action}"


def beside_path(name: str) -> str:
    """Return the path from an action to the page of a job in the same namespace."""
    return f"../{quote(name, safe='')}"


def more_quota_path(queue: str, pool: str) -> str:
    """Return the path from the overview to the question about more GPUs for a queue."""
    return f"what-if?{urlencode({'ask': 'queue', 'queue': queue, 'pool': pool, 'gpus': 8})}"


def other_size_path(job: str, *, nodes: int) -> str:
    """Return the path from the overview to the question about other nodes for `namespace/name`."""
    return f"what-if?{urlencode({'ask': 'job', 'job': job, 'nodes': nodes})}"


def ended_path(path: EndedPath) -> str:
    """Return the path from the history to the page of an archived job."""
    parts = (path.namespace, path.name, path.uid)
    return "/".join(("history", *(quote(part, safe="") for part in parts)))
