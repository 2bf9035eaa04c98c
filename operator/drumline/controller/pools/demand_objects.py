"""Objects that make demands visible to an autoscaler, of one kind for each mode.

They are the only memory of demands. The leader reads them, and deletes those without a demand. All
objects of a demand are created together and deleted with one request.
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
"""Answers that a retry does not change: a right, a quota, a policy, a webhook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Namespace of these objects, and the image that they name. It is never pulled."""

    namespace: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandInput:
    """A demand to make visible, and the input for its objects."""

    demand: NodeDemand
    spec: GpuPoolSpec
    """Spec of its pool."""
    gang: Gang | None
    """None if an earlier leader asked for the nodes and no cycle of this leader has seen it."""


class DemandObjects(Protocol):
    """The objects of all demands of one mode."""

    async def read(self) -> Sequence[NodeDemand]:
        """Read the existing objects.

        Returns:
            The recorded demands whose objects all exist.

        Raises:
            KubeError: they could not be read.
        """
        ...

    async def keep_only(self, demands: Collection[NodeDemand]) -> None:
        """Delete the objects that were read and belong to none of these demands.

        Raises:
            KubeError: some may still exist.
        """
        ...

    async def ask(self, request: DemandInput) -> None:
        """Create the missing objects of a demand. Existing objects stay as they are.

        Raises:
            KubeError: some may be missing.
        """
        ...

    async def withdraw(self, demand: NodeDemand) -> None:
        """Delete all objects of a demand.

        Raises:
            KubeError: some may still exist.
        """
        ...

    def is_refused(self, demand: NodeDemand) -> bool:
        """Return whether a condition or the API server excludes nodes for this demand."""
        ...

    async def answer(self, demand: NodeDemand) -> str:
        """Return the autoscaler's last message about a demand that was read, or ''.

        Raises:
            KubeError: it could not be read.
        """
        ...


async def pool_uid(client: KubeClient, name: str) -> str:
    """Return the uid of a GpuPool, which owns the objects of its demands.

    Raises:
        KubeError: it could not be read.
        Undecodable: the answer is not a GpuPool.
    """
    return codec.identity(await reads.get(client, GPU_POOLS, name=name)).uid


def bounded_answer(text: str) -> str:
    """Shorten a text to the length that a job's message can take."""
    return text if len(text) <= MAX_SAID_CHARS else text[: MAX_SAID_CHARS - 1] + "…"
