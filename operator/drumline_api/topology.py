"""Where in the network a gang must or should sit, and which of its pods belong together.

Level names come from the GpuPool. All parts can be asked for at once: the whole gang in one block,
in one rack if that fits now, every eight neighbours in one NVLink clique, spread evenly over racks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import ApiModel, Name, Rule, keyed_by


class SliceRequest(ApiModel):
    """Neighbours in rank that belong in one domain, such as the ranks of one tensor-parallel group.

    Pods 0 to nodes-1 are the first slice, the next ones the second, and so on.
    """

    level: Name
    """Level of which every slice has one domain, for instance clique."""
    nodes: Annotated[int, Field(ge=1, le=10_000)]
    """Pods of one slice; divides nodes of the job."""
    required: bool = True
    """Whether the job waits otherwise; false: as far as it can be had now. Default: true."""


class ComputeDomainSpec(ApiModel):
    """NVLink between nodes."""


class TopologyRequest(ApiModel):
    """Where in the network the gang must or should sit; level names come from the GpuPool."""

    required: Name | None = None
    """Level the whole gang must share one domain of, for instance rack: it waits otherwise."""
    preferred: Name | None = None
    """Level the gang should share one domain of; it is spread over as few as possible otherwise."""
    slices: Annotated[
        list[SliceRequest] | None,
        Field(min_length=1, max_length=4, json_schema_extra=keyed_by("level")),
    ] = None
    """Runs of neighbours that belong in one domain of a level; smaller ones lie within larger
    ones."""
    balanced: Name | None = None
    """Level over whose domains the pods (or slices) are spread as evenly as these have room, where
    the gang needs several of them. It never keeps a job waiting."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.required) || has(self.preferred) || has(self.slices)"
            " || has(self.balanced)",
            message="topology needs required, preferred, slices or balanced; name a level of the"
            " GpuPool",
        ),
        Rule(
            rule="!has(self.required) || !has(self.preferred) || self.required != self.preferred",
            message="preferred is the level that required demands already; name a narrower one or"
            " remove it",
            field_path=".preferred",
        ),
        Rule(
            rule="!has(self.slices) || self.slices.all(one, self.slices.all(other,"
            " one.level == other.level || (one.nodes != other.nodes"
            " && (one.nodes % other.nodes == 0 || other.nodes % one.nodes == 0))))",
            message="slices lie within each other: nodes of a larger one must be a multiple of"
            " nodes of the next smaller one",
            field_path=".slices",
        ),
    )
