"""Wait times of the computation for FSDP2, whose collectives run in hooks of PyTorch.

One hook before and one after FSDP2's measure the time to gather a unit's weights, before its
forward and before its backward pass. On a GPU that is the time for which the compute stream waits.
Gradients are scattered in the middle of a backward pass. On a CPU this is a blocking call, which is
measured. On a GPU it is concurrent, and the time that is not hidden counts as backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed.fsdp import FSDPModule

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part


def time_fsdp(stage: nn.Module, *, device: torch.device) -> None:
    """Time the collectives of all units from now on; to be called once, after `fully_shard`."""
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

    def hook_backward(outputs: Tensor | tuple[object, ...], hook: Callable[..., None]) -> None:
        if torch.is_grad_enabled() and not is_compiling():
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                if isinstance(output, Tensor) and output.requires_grad:
                    output.register_hook(hook)  # pyright: ignore[reportUnknownMemberType] - untyped

    def begin_backward(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
        hook_backward(outputs, begin)

    def end_backward(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
        hook_backward(outputs, end)

    unit.register_forward_pre_hook(begin, prepend=True)
    unit.register_forward_pre_hook(end)
    unit.register_forward_hook(begin_backward, prepend=True)
    unit.register_forward_hook(end_backward)


def _time_scatters(unit: FSDPModule) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (  # noqa: PLC0415 - slow
        DefaultReduceScatter,
    )

    class TimedReduceScatter(DefaultReduceScatter):
        """Torch's reduce-scatter, timed."""

        def __call__(self, *args: Any, **options: Any) -> Any:
            with step_part("reduce_scatter", Axis.FSDP):
                return super().__call__(*args, **options)

    unit.set_custom_reduce_scatter(TimedReduceScatter())
