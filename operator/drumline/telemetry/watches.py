"""Watches of an add-on process: jobs by namespace, silence, objects that were skipped.

`controller/informers/informers` does the same for the operator's own caches, which have more kinds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from drumline.kube.client import KubeClient
from drumline.kube.errors import Unreadable
from drumline.kube.informer import Informer, Quarantined, Selection
from drumline.kube.kinds import TRAINING_JOBS
from drumline.kube.views import Key, View
from drumline.kube.watch_decoder import Decode
from drumline.scope import InstallationScope
from drumline.telemetry import logs

log = logs.get("drumline.telemetry.watches")

V = TypeVar("V", bound=View)
LOG_SECONDS: Final = 10.0
MOST_LOGGED: Final = 1000
"""Most objects whose log lines are remembered."""


def job_informers(
    client: KubeClient, scope: InstallationScope, *, decode: Decode[V]
) -> tuple[Informer[V], ...]:
    """Return informers of the installation's jobs: one for each namespace, or one for all.

    Args:
        client: sends the requests.
        scope: namespaces of the installation.
        decode: decodes an object.
    """

    def informer(namespace: str | None) -> Informer[V]:
        return Informer(
            client,
            TRAINING_JOBS,
            decode=decode,
            selection=Selection(namespace=namespace),
            on_quarantine=warn_left_out,
            on_forbidden=None if namespace is None else partial(_warn_unreadable, namespace),
        )

    return tuple(map(informer, scope.reads))


def silence_of(informers: Iterable[Informer[Any]]) -> str | None:
    """Return why a synced informer is not healthy, or None."""
    now = time.monotonic()
    problems = (informer.silence(now) for informer in informers if informer.has_synced)
    return next((problem for problem in problems if problem is not None), None)


def _warn_unreadable(namespace: str, error: Unreadable) -> None:
    """Log that a namespace cannot be read.

    The namespace's Role was deleted with it. It counts as empty until it can be read again.
    """
    log.warning("namespace_unreadable", namespace=namespace, why=str(error))


class LeftOutLog:
    """Logs objects that cannot be read, each at most once in `LOG_SECONDS`.

    A tenant may write one object again and again.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[tuple[str, Key | None], float] = {}

    def __call__(self, document: Quarantined) -> None:
        """Log that an object cannot be read."""
        now, about = self._clock(), (document.resource.plural, document.key)
        if now < self._logged_at.get(about, -inf) + LOG_SECONDS:
            return
        self._logged_at.pop(about, None)
        while len(self._logged_at) >= MOST_LOGGED:
            del self._logged_at[next(iter(self._logged_at))]
        self._logged_at[about] = now
        log.warning(
            "object_left_out",
            resource=document.resource.plural,
            key="/".join(document.key) if document.key else None,
            why=document.reason,
        )


warn_left_out: Final = LeftOutLog()
