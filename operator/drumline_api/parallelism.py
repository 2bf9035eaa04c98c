"""`spec.trainer.parallelism`: how the ranks of the bundled trainer share the work."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule
from drumline_contract.config import DataParallel, Schedule

Degree = Annotated[int, Field(ge=1, le=4096)]


def _enum_of(kind: type[DataParallel | Schedule]) -> dict[str, Any]:
    return {"enum": [str(member) for member in kind]}


class ParallelismSpec(ApiModel):
    """Degrees that divide the ranks; those that remain are data-parallel.

    Ranks that share a tensor or a sequence are next to each other, so a node holds whole groups
    where its GPUs divide by the degree; stages of a pipeline are the farthest apart.
    """

    mode: Literal["Manual", "Auto"] = "Manual"
    """Manual: the layout is as it is written. Auto: at every start the ranks choose the fastest one
    that fits in their GPUs' memory, for the number of them that there are; degrees above 1, and
    what else differs from its default, stay as written. status.layout says what was chosen.
    Default: Manual."""
    data_parallel: Annotated[str, Field(json_schema_extra=_enum_of(DataParallel))] = "fsdp"
    """What ranks that see different samples share out: ddp nothing, zero1 the optimizer's state,
    zero2 gradients too, fsdp weights too; parameter-server keeps what is updated on servers.
    Default: fsdp."""
    replicate: Degree = 1
    """With fsdp: copies of the sharded model, for instance one a rack (HSDP). Default: 1."""
    tensor: Degree = 1
    """Ranks that share every matrix product; best within one node. Default: 1."""
    context: Degree = 1
    """Ranks that share every sequence. Default: 1."""
    pipeline: Degree = 1
    """Groups of ranks that hold different layers. Default: 1."""
    schedule: Annotated[str, Field(json_schema_extra=_enum_of(Schedule))] = "1f1b"
    """In which order a pipeline works on its micro-batches. Default: 1f1b."""
    expert: Degree = 1
    """Ranks that share the experts of a mixture, taken from those that see different samples.
    Default: 1."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.replicate == 1 || self.dataParallel == 'fsdp'",
            message="replicate is for dataParallel fsdp; the others replicate over all ranks that"
            " are left, so remove it",
            field_path=".replicate",
        ),
    )
