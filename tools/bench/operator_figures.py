"""What a running operator says of itself: that it leads, and what it has written."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Final

READY_SECONDS: Final = 180


async def until_ready(port: int) -> None:
    """Return once the operator leads and its caches are full.

    Raises:
        TimeoutError: it did not within three minutes.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not await asyncio.to_thread(_leads, port):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator does not lead after {READY_SECONDS} s: see its log")
        await asyncio.sleep(0.2)


def writes_of_jobs(port: int) -> int:
    """Writes about jobs so far: no lease, no deletes, no status of queues and pools."""
    total = 0.0
    for line in _get(port, "metrics").splitlines():
        if not line.startswith("drumline_api_requests_total{"):
            continue
        labels, _, value = line.rpartition(" ")
        writing = 'verb="create"' in labels or 'verb="patch"' in labels
        rest = ("leases", "trainingqueues", "gpupools")
        if writing and not any(f'resource="{other}"' in labels for other in rest):
            total += float(value)
    return int(total)


def _leads(port: int) -> bool:
    try:
        return "drumline_leader 1.0" in _get(port, "metrics") and bool(_get(port, "readyz"))
    except OSError:
        return False


def _get(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as answer:
        return answer.read().decode()
