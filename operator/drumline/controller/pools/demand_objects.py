"""How what is asked for becomes visible to an autoscaler: by objects of one kind for each mode.

They are the only memory of what was asked for. Whoever leads reads them, and deletes those of no
demand; all of a demand are made together and go with one request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden, Invalid
from drumline.kube.kinds import GPU_POOLS
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.node_demands import NodeDemand
from drumline_scheduler.model import Gang

MAX_SAID_CHARS: Final = 200
REFUSALS: Final = (Forbidden, Invalid)
"""Answers that a second try does not change: a right, a quota, a policy, a webhook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Where these objects are, and the image that they name and nobody pulls."""

    namespace: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A demand that is to be visible, with what its objects are made of."""

    demand: NodeDemand
    spec: GpuPoolSpec
    """Of its pool."""
    gang: Gang | None
    """None: an earlier leader asked for it, and no cycle of this one has looked at it yet."""


class DemandObjects(Protocol):
    """The objects of the demands of one mode."""

    async def read(self) -> Sequence[NodeDemand]:
        """Look at what is there.

        Returns:
            The demands all of whose objects are there, as they were recorded.

        Raises:
            KubeError: they could not be read.
        """
        ...

    async def keep_only(self, demands: Collection[NodeDemand]) -> None:
        """Delete what was read and is of none of these demands.

        Raises:
            KubeError: some may still be there.
        """
        ...

    async def ask(self, asking: Asking) -> None:
        """Make what is missing of a demand; what is there stays as it is.

        Raises:
            KubeError: some of it may be missing.
        """
        ...

    async def withdraw(self, demand: NodeDemand) -> None:
        """Delete all of a demand.

        Raises:
            KubeError: some may still be there.
        """
        ...

    def is_refused(self, demand: NodeDemand) -> bool:
        """Whether a condition that was read, or the API server, says that no nodes come for it."""
        ...

    async def answer(self, demand: NodeDemand) -> str:
        """What the autoscaler has said of a demand whose objects were read; '' for nothing.

        Raises:
            KubeError: it could not be read.
        """
        ...


async def pool_uid(client: KubeClient, name: str) -> str:
    """Of the GpuPool, which owns the objects: they go with it.

    Raises:
        KubeError: it could not be read.
        Undecodable: it is none.
    """
    return codec.identity(await reads.get(client, GPU_POOLS, name=name)).uid


def bounded_answer(text: str) -> str:
    """As much of it as a job's message takes."""
    return text if len(text) <= MAX_SAID_CHARS else text[: MAX_SAID_CHARS - 1] + "…"
