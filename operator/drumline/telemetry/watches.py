"""What a process of its own says about its watches: silence, and objects that were left out.

The operator's own caches are judged in `controller/cache/informers`, which knows more of them.
"""

from __future__ import annotations

import time
from typing import Any

from drumline.kube.informer import Informer, Quarantined
from drumline.telemetry import logs

log = logs.get("drumline.telemetry.watches")


def silence_of(informer: Informer[Any]) -> str | None:
    """Why a synced informer is not healthy; None where it is, or fills its cache yet."""
    return informer.silence(time.monotonic()) if informer.has_synced else None


def warn_left_out(document: Quarantined) -> None:
    """Log that an object cannot be read."""
    key = "/".join(document.key) if document.key else None
    log.warning("object_left_out", key=key, why=document.reason)
