"""The nodes of a gang's members, as stored in status: small enough for thousands of members.

A member is identified by its *index*, which never changes, and its *pod generation*, the generation
in which its pod was created. Ranks follow *position*: the order of the present indices. The common
prefix of the node names is stored once, and the pod generation once for all but the exceptions.

Example: nodes gpu-1, gpu-2, gpu-7 of members 0, 1, 3, where member 3 was replaced in generation 2:
prefix "gpu-", nodes ["1", "2", "7"], generation 1, replaced [{generation 2, indices [3]}],
absent [2].
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drumline_api.base import ApiModel, keyed_by

ObjectName = Annotated[str, Field(max_length=253)]
Indices = Annotated[list[int], Field(max_length=10_000)]


class PoolNodes(ApiModel):
    """Nodes for a gang, one a position: `prefix + nodes[position]`."""

    gpu_pool: ObjectName
    """GpuPool of the nodes."""
    prefix: ObjectName = ""
    """What the names of all the nodes begin with."""
    nodes: Annotated[list[ObjectName], Field(max_length=10_000)]
    """Rest of each node's name, in the order of the live pod indices."""

    def node_names(self) -> tuple[str, ...]:
        """Full node names, by position."""
        return tuple(self.prefix + rest for rest in self.nodes)


class ReplacedMembers(ApiModel):
    """Members whose pods were created in a later generation than the others'."""

    generation: int
    """Generation in which their pods were created; part of their names."""
    indices: Indices
    """Their pod indices."""


class SurplusMembers(ApiModel):
    """Members on nodes of a second pool."""

    gpu_pool: ObjectName
    """GpuPool of their nodes."""
    indices: Indices
    """Their pod indices."""


class Assignment(PoolNodes):
    """Which node each member of the gang got, and which pod stands for it.

    `gpu_pool` is that of all members but those in `surplus`.
    """

    generation: int | None = None
    """Generation in which the pods were created that replaced does not list."""
    replaced: Annotated[
        list[ReplacedMembers] | None,
        Field(max_length=10_000, json_schema_extra=keyed_by("generation")),
    ] = None
    """Members replaced since then."""
    absent: Indices | None = None
    """Pod indices without a place: an elastic gang shrank."""
    surplus: SurplusMembers | None = None
    """Members above the smallest size, on nodes of a spot pool (spot: Surplus)."""
    lost: Indices | None = None
    """Members given up, whose places are to be filled again."""
    joining: Indices | None = None
    """Members that are still to join: the others train without them."""

    def indices(self) -> tuple[int, ...]:
        """The live pod indices, by position."""
        absent = frozenset(self.absent or ())
        wanted = len(self.nodes) + len(absent)
        return tuple(index for index in range(wanted) if index not in absent)
