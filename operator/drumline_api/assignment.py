"""The nodes of a gang's members, as stored in status: small enough for thousands of members.

A member is identified by its *index*, which never changes, and its *pod generation*, the generation
in which its pod was created. Ranks follow *position*: the order of the present indices. The common
prefix of the node names is stored once, and the pod generation once for all but the exceptions.

Example: nodes gpu-1, gpu-2, gpu-7 of members 0, 1, 3, where member 3 was replaced in generation 2:
prefix "gpu-", nodes ["1", "2", "7"], generation 1, replaced [{generation 2, indices [3]}],
absent [2].
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from drumline_api.base import ApiModel, keyed_by

ObjectName = Annotated[str, Field(max_length=253)]
# The largest gang has 10,000 pods.
Indices = Annotated[list[int], Field(max_length=10_000)]


class PoolNodes(ApiModel):
    """Nodes of a gang, one per position: `prefix + nodes[position]`."""

    gpu_pool: ObjectName
    """GpuPool of the nodes."""
    prefix: ObjectName = ""
    """Common prefix of all node names."""
    nodes: Annotated[list[ObjectName], Field(max_length=10_000)]
    """Node names without the prefix, in the order of the live pod indices."""

    def node_names(self) -> tuple[str, ...]:
        """Return the full node names, by position."""
        # Joined on each call: full names would take most of the memory of a large job.
        return tuple(self.prefix + rest for rest in self.nodes)


class ReplacedMembers(ApiModel):
    """Members whose pods were created in a later generation than the other pods."""

    generation: int
    """Generation in which their pods were created. It is part of the pod names."""
    indices: Indices
    """Pod indices of the members."""


class SurplusMembers(ApiModel):
    """Members on nodes of a second pool."""

    gpu_pool: ObjectName
    """GpuPool of their nodes."""
    indices: Indices
    """Pod indices of the members."""


class Assignment(PoolNodes):
    """Node and pod of each member of the gang.

    `gpu_pool` is the pool of all members except those in `surplus`.
    """

    generation: int | None = None
    """Generation in which the pods were created that `replaced` does not list."""
    replaced: Annotated[
        list[ReplacedMembers] | None,
        Field(max_length=10_000, json_schema_extra=keyed_by("generation")),
    ] = None
    """Members replaced since that generation."""
    absent: Indices | None = None
    """Pod indices without a node, because an elastic gang shrank."""
    surplus: SurplusMembers | None = None
    """Members above the minimum size, on nodes of a spot pool (spot: Surplus)."""
    lost: Indices | None = None
    """Lost members whose places will be filled again."""
    joining: Indices | None = None
    """Members that have not joined yet. The other members train without them."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse an assignment that contradicts itself, as somebody may have written by hand."""
        absent = frozenset(self.absent or ())
        wanted = range(len(self.nodes) + len(absent))
        surplus = self.surplus.indices if self.surplus else []
        if len(self.nodes) <= len(surplus):
            raise ValueError(f"{len(self.nodes)} nodes for {len(surplus)} surplus members and more")
        if not all(map(wanted.__contains__, [*absent, *surplus])):
            raise ValueError(f"{len(self.nodes)} nodes for indices that end at {len(wanted) - 1}")
        if len({*surplus} - absent) < len(surplus):
            raise ValueError("a surplus member is absent, or is named twice")
        return self

    def indices(self) -> tuple[int, ...]:
        """Return the live pod indices, by position."""
        absent = frozenset(self.absent or ())
        # Indices never change, so the gaps are the absent members.
        wanted = len(self.nodes) + len(absent)
        return tuple(index for index in range(wanted) if index not in absent)
