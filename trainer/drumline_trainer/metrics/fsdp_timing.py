"""How long FSDP2 makes the computation wait: its collectives run in hooks of torch's own.

A hook of ours on either side of FSDP2's takes the time it needs to gather a unit's weights, before
its forward and before its backward; on a GPU that is what the compute stream waits, whatever runs
beside it. Gradients are scattered in the middle of a backward pass: on a CPU by a call that blocks,
which is timed; on a GPU beside the computation, where what is not hidden counts as backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed.fsdp import FSDPModule

from drumline_trainer.layout import Axis
from drumline_trainer.metrics.step_timer import step_part


def time_fsdp(stage: nn.Module, *, device: torch.device) -> None:
    """Time the collectives of all units, from now on. To be called once, after `fully_shard`."""
    for unit in stage.modules():
        if isinstance(unit, FSDPModule):
            _time_gathers(unit)
            if device.type != "cuda":
                _time_scatters(unit)


def _time_gathers(unit: FSDPModule) -> None:
    assert isinstance(unit, nn.Module)  # noqa: S101 - what FSDP2 makes of a module
    gather = step_part("all_gather", Axis.FSDP)

    def begin(*_: Any) -> None:
        gather.__enter__()

    def end(*_: Any) -> None:
        gather.__exit__()

    def before_backward(_module: nn.Module, _inputs: Any, outputs: Any, *, hook: Any) -> None:
        if torch.is_grad_enabled() and not is_compiling():
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                if isinstance(output, Tensor) and output.requires_grad:
                    output.register_hook(hook)

    unit.register_forward_pre_hook(begin, prepend=True)
    unit.register_forward_pre_hook(end)
    unit.register_forward_hook(lambda *passed: before_backward(*passed, hook=begin), prepend=True)
    unit.register_forward_hook(lambda *passed: before_backward(*passed, hook=end))


def _time_scatters(unit: FSDPModule) -> None:
    # imported where it is needed: a path of torch's own
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (  # noqa: PLC0415
        DefaultReduceScatter,
    )

    class TimedReduceScatter(DefaultReduceScatter):
        """Torch's own, timed."""

        def __call__(self, *args: Any, **options: Any) -> Any:
            with step_part("reduce_scatter", Axis.FSDP):
                return super().__call__(*args, **options)

    unit.set_custom_reduce_scatter(TimedReduceScatter())
