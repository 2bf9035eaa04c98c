"""Define `spec.trainer.parallelism`: how the ranks of the bundled trainer divide the work."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule
from drumline_contract.config import DataParallel, Schedule

Degree = Annotated[int, Field(ge=1, le=4096)]


def _enum_of(kind: type[DataParallel | Schedule]) -> dict[str, Any]:
    return {"enum": [str(member) for member in kind]}


class ParallelismSpec(ApiModel):
    """Degrees that divide the ranks. The remaining factor is data-parallel.

    Ranks that share a tensor or a sequence are adjacent. A node therefore holds whole groups if the
    degree divides its GPUs. Pipeline stages are farthest apart.
    """

    mode: Literal["Manual", "Auto"] = "Manual"
    """Manual: use the layout as written. Auto: at every start, the ranks choose the fastest layout
    that fits in the memory of their GPUs, for the current number of ranks. Degrees above 1 and
    other non-default values stay as written. status.layout shows the choice. Default: Manual."""
    data_parallel: Annotated[str, Field(json_schema_extra=_enum_of(DataParallel))] = "fsdp"
    """State that ranks with different samples divide among themselves. ddp: nothing. zero1: the
    optimizer's state. zero2: also gradients. fsdp: also weights. parameter-server: servers keep the
    updated state. Default: fsdp."""
    replicate: Degree = 1
    """Number of copies of the sharded model with fsdp, such as one per rack (HSDP). Default: 1."""
    tensor: Degree = 1
    """Number of ranks that share every matrix product. Works best within one node. Default: 1."""
    context: Degree = 1
    """Number of ranks that share every sequence. Default: 1."""
    pipeline: Degree = 1
    """Number of pipeline stages: groups of ranks that hold different layers. Default: 1."""
    schedule: Annotated[str, Field(json_schema_extra=_enum_of(Schedule))] = "1f1b"
    """Order in which a pipeline processes its micro-batches. Default: 1f1b."""
    expert: Degree = 1
    """Number of ranks that share the experts of a mixture. They are part of the ranks with
    different samples. Default: 1."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.replicate == 1 || self.dataParallel == 'fsdp'",
            message="replicate needs dataParallel fsdp, because the other modes replicate over"
            " all remaining ranks; remove replicate",
            field_path=".replicate",
        ),
    )
