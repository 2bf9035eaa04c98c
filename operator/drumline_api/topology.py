"""Define the network location of a gang, and which of its pods belong together.

Level names come from the GpuPool. All parts can be combined: the whole gang in one block,
preferably in one rack, every eight neighbors in one NVLink clique, spread evenly over racks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import ApiModel, Name, Rule, keyed_by


class SliceRequest(ApiModel):
    """Pods with consecutive ranks that belong in one domain, such as one tensor-parallel group.

    Pods 0 to nodes-1 are the first slice, the next ones the second, and so on.
    """

    level: Name
    """Level of which every slice uses one domain, such as clique."""
    nodes: Annotated[int, Field(ge=1, le=10_000)]
    """Number of pods in a slice. Must divide the job's nodes."""
    required: bool = True
    """true: the job waits until every slice fits. false: as many slices as currently fit. Default:
    true."""


class ComputeDomainSpec(ApiModel):
    """NVLink between nodes."""


class TopologyRequest(ApiModel):
    """Network location of the gang. Level names come from the GpuPool."""

    required: Name | None = None
    """Level of which the whole gang must be in one domain, such as rack. Otherwise the job
    waits."""
    preferred: Name | None = None
    """Level of which the gang should be in one domain. Otherwise it is spread over as few domains
    as possible."""
    slices: Annotated[
        list[SliceRequest] | None,
        Field(min_length=1, max_length=4, json_schema_extra=keyed_by("level")),
    ] = None
    """Groups of consecutive pods that belong in one domain of a level. Smaller slices must lie
    within larger ones."""
    balanced: Name | None = None
    """Level over whose domains the pods (or slices) are spread as evenly as their free GPUs allow,
    if the gang needs several domains. It never makes a job wait."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.required) || has(self.preferred) || has(self.slices)"
            " || has(self.balanced)",
            message="topology needs required, preferred, slices or balanced; set one to a level"
            " of the GpuPool",
        ),
        Rule(
            rule="!has(self.required) || !has(self.preferred) || self.required != self.preferred",
            message="preferred is the same level as required; name a narrower one or remove it",
            field_path=".preferred",
        ),
        Rule(
            rule="!has(self.slices) || self.slices.all(one, self.slices.all(other,"
            " one.level == other.level || (one.nodes != other.nodes"
            " && (one.nodes % other.nodes == 0 || other.nodes % one.nodes == 0))))",
            message="slices must lie within each other: nodes of a larger slice must be a"
            " multiple of nodes of the next smaller slice",
            field_path=".slices",
        ),
    )
