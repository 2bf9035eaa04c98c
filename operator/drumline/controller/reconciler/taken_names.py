"""Why a member's pod cannot be created: its name is another pod's.

Mostly that pod is the member itself, created before a crash or by a write whose answer was lost, or
the leaving pod of a deleted job of the same name: the cache shows the first soon, and the second is
gone soon. A pod of any other owner may stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from drumline.controller.cache.pods import is_owned
from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.errors import NotFound
from drumline.kube.kinds import PODS

MOST_LOOKS: Final = 4
"""So many pods are read at a time: each costs a request, and a gang has up to 10,000."""


async def name_conflict(client: KubeClient, *, namespace: str, names: Iterable[str]) -> str | None:
    """Which of these names is held by a pod that is not Drumline's; None: waiting will do.

    Raises:
        KubeError: the API server did not say.
    """
    for name in islice(names, MOST_LOOKS):
        try:
            pod = codec.pod(await reads.get(client, PODS, name=name, namespace=namespace))
        except (NotFound, codec.Undecodable):
            continue
        if not pod.terminating and not is_owned(pod):
            return (
                f"pod {name} exists already and is not of a TrainingJob: delete that pod, or give"
                " one of the two another name"
            )
    return None
