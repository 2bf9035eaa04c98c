"""Addresses within the page."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from drumline_addons.archive.layout import EndedPath


def job_path(job: str) -> str:
    """Of the page of `namespace/name`, from the overview."""
    namespace, _, name = job.partition("/")
    return f"job/{quote(namespace, safe='')}/{quote(name, safe='')}"


def action_path(name: str, action: str) -> str:
    """Of a button of the page of the job of this name, from that page."""
    return f"{quote(name, safe='')}/{action}"


def beside_path(name: str) -> str:
    """Of the page of a job of this name in the same namespace, from an action's address."""
    return f"../{quote(name, safe='')}"


def more_quota_path(queue: str, pool: str) -> str:
    """Of the question what a queue with more GPUs would do, from the overview."""
    return f"what-if?{urlencode({'ask': 'queue', 'queue': queue, 'pool': pool, 'gpus': 8})}"


def other_size_path(job: str, *, nodes: int) -> str:
    """Of the question what `namespace/name` with other nodes would do, from the overview."""
    return f"what-if?{urlencode({'ask': 'job', 'job': job, 'nodes': nodes})}"


def ended_path(path: EndedPath) -> str:
    """Of the page of a job of the archive, from the history."""
    parts = (path.namespace, path.name, path.uid)
    return "/".join(("history", *(quote(part, safe="") for part in parts)))
