"""The bottleneck of a run, the evidence for it, and what to try next. Pure; no torch.

Everything in a step but computing is overhead. The largest overhead is the bottleneck if it takes
`LOSS_SHARE` of a step or more, else computing is. Of equal overheads the first in `_COSTS` is
named: the easiest to remedy.

    data        waiting for samples
    saving      checkpoints and snapshots for which training stands still
    bubble      pipeline stages that wait for their neighbours (`send`, `recv` on axis pp)
    network     all other collectives, as far as the computation waits for them
    host        the time between the phases: Python, logging
    memory      the optimizer, which moves weights and computes little; also forward and backward
                where memory is full and MFU is low, as no larger batch can raise it

Example: forward and backward 6 s, all_gather/fsdp 3 s, data 1 s. The shares are compute 0.6,
network 0.3, data 0.1; the largest overhead is the network, above 0.25: "network-bound: 30% of a
step waits for other ranks, most for all_gather over fsdp".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

LOSS_SHARE = 0.25
FULL_MEMORY = 0.92
LOW_MFU = 0.35
_PIPELINE_WAITS = ("recv/pp", "send/pp")


class Bottleneck(StrEnum):
    """The resource that limits a run."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    DATA = "data"
    BUBBLE = "bubble"
    SAVING = "saving"
    HOST = "host"


_COSTS = (
    Bottleneck.DATA,
    Bottleneck.SAVING,
    Bottleneck.BUBBLE,
    Bottleneck.NETWORK,
    Bottleneck.HOST,
    Bottleneck.MEMORY,
)
_BY_PHASE = {
    "forward": Bottleneck.COMPUTE,
    "backward": Bottleneck.COMPUTE,
    "evaluation": Bottleneck.COMPUTE,
    "optimizer": Bottleneck.MEMORY,
    "data": Bottleneck.DATA,
    "checkpoint": Bottleneck.SAVING,
    "snapshot": Bottleneck.SAVING,
    "other": Bottleneck.HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckDiagnosis:
    """A bottleneck with evidence and advice."""

    bound: Bottleneck
    share: float
    """Share of a step, between 0 and 1."""
    evidence: str
    advice: str

    @property
    def sentence(self) -> str:
        """The diagnosis in words."""
        return f"{self.bound}-bound: {self.evidence}; {self.advice}"


def diagnose(
    parts: Mapping[str, float],
    *,
    mfu: float | None = None,
    memory_share: float | None = None,
) -> BottleneckDiagnosis:
    """Find the bottleneck of a run.

    Args:
        parts: seconds of a step by part (`step_timer`); their sum must be above 0.
        mfu: model FLOP utilization; None where the device's peak is not known.
        memory_share: peak of the allocator over the device's memory; None where not measured.

    Raises:
        ValueError: no time was measured.
    """
    # Phase 1: shares of the step.
    total = sum(parts.values())
    if total <= 0:
        raise ValueError("a step without any time has no bottleneck")
    # Full memory with a low MFU: a larger batch would help and does not fit.
    full = memory_share is not None and memory_share >= FULL_MEMORY
    full = full and (mfu is None or mfu < LOW_MFU)
    shares = _shares(parts, total=total)
    # Phase 2: compute time counts as memory-bound in this case.
    if full:
        shares[Bottleneck.MEMORY] += shares[Bottleneck.COMPUTE]
        shares[Bottleneck.COMPUTE] = 0.0
    # Rounding makes shares that differ by float noise equal. Then the order of `_COSTS` decides.
    worst = max(_COSTS, key=lambda cost: (round(shares[cost], 9), -_COSTS.index(cost)))
    # Small overheads are normal, so the run counts as compute-bound.
    if shares[worst] < LOSS_SHARE:
        worst = Bottleneck.COMPUTE
    because = _because(worst, share=shares[worst], parts=parts, mfu=mfu, memory=memory_share)
    return BottleneckDiagnosis(
        bound=worst,
        share=shares[worst],
        evidence=because,
        advice=_advice(worst, parts=parts, full=full, mfu=mfu),
    )


def _shares(parts: Mapping[str, float], *, total: float) -> dict[Bottleneck, float]:
    shares = dict.fromkeys(Bottleneck, 0.0)
    for name, seconds in parts.items():
        bound = (
            Bottleneck.BUBBLE
            if name in _PIPELINE_WAITS
            # A part that is no phase is a collective.
            else _BY_PHASE.get(name, Bottleneck.NETWORK)
        )
        shares[bound] += seconds / total
    return shares


def _because(
    bound: Bottleneck,
    *,
    share: float,
    parts: Mapping[str, float],
    mfu: float | None,
    memory: float | None,
) -> str:
    percent = f"{share:.0%} of a step"
    match bound:
        case Bottleneck.COMPUTE:
            efficiency = "" if mfu is None else f" at {mfu:.0%} MFU"
            return f"{percent} computes{efficiency}"
        case Bottleneck.NETWORK:
            operation, _, axis = _longest_collective(parts).partition("/")
            return f"{percent} waits for other ranks, most for {operation} over {axis}"
        case Bottleneck.DATA:
            return f"{percent} waits for samples"
        case Bottleneck.BUBBLE:
            return f"{percent} waits for other stages of the pipeline"
        case Bottleneck.SAVING:
            kind = max(("checkpoint", "snapshot"), key=lambda name: parts.get(name, 0.0))
            return f"{percent} stands still for a {kind}"
        case Bottleneck.HOST:
            return f"{percent} passes between the phases"
        case Bottleneck.MEMORY:
            filled = "" if memory is None else f", memory is {memory:.0%} full"
            return f"{percent} moves weights or cannot grow its batch{filled}"


def _advice(bound: Bottleneck, *, parts: Mapping[str, float], full: bool, mfu: float | None) -> str:
    match bound:
        case Bottleneck.COMPUTE if mfu is not None and mfu < LOW_MFU:
            return "raise micro_batch_size: there is memory left, and kernels are small"
        case Bottleneck.COMPUTE:
            return "a lower precision or more devices are what is left"
        case Bottleneck.NETWORK:
            return _network_advice(_longest_collective(parts))
        case Bottleneck.DATA:
            return "keep the samples nearer (a memory-mapped file on a local disk)"
        case Bottleneck.BUBBLE:
            return "more micro-batches per step, or an interleaved or zero-bubble schedule"
        case Bottleneck.SAVING:
            return "raise checkpoint.every_steps (for snapshots checkpoint.snapshot_every_steps)"
        case Bottleneck.HOST:
            return "raise log_every_steps, and look at a trace (`profile-now`)"
        case Bottleneck.MEMORY if full:
            return "recompute activations or shard more, then raise micro_batch_size"
        case Bottleneck.MEMORY:
            return "update less often (a larger global batch), or shard the optimizer's state"


def _network_advice(collective: str) -> str:
    axis = collective.partition("/")[2]
    if axis == "tp":
        return "a lower tensor degree, within one node, or sequence parallelism"
    if axis == "cp":
        return "a lower context degree, or more micro-batches of shorter sequences"
    if axis == "ep":
        return "a lower expert degree, within one node"
    return (
        "more tokens per step and rank (micro_batch_size, accumulation), or a smaller shard group"
    )


def _longest_collective(parts: Mapping[str, float]) -> str:
    waits = {
        name: seconds
        for name, seconds in parts.items()
        if name not in _BY_PHASE and name not in _PIPELINE_WAITS
    }
    # Sorting first makes ties deterministic across ranks.
    return max(sorted(waits), key=lambda name: waits[name])
