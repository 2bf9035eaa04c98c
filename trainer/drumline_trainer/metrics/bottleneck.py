"""What limits a run, the number behind it, and what to try next. Pure; no torch.

Computing is what a step is for; all else is loss. So a run is bound by its largest loss once that
takes `LOSS_SHARE` of a step, and by computing otherwise. Losses that are equal are named in the
order of `_COSTS`: the one that is easiest to remedy first.

    data        waiting for samples
    saving      checkpoints and snapshots that training stands still for
    bubble      pipeline stages that wait for their neighbours (`send`, `recv` on axis pp)
    network     every other collective, as far as the computation waits for it
    host        between the phases: Python, logging
    memory      the optimizer, which moves weights and computes little; and all of forward and
                backward where memory is full and MFU is low, so that no larger batch can raise it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

LOSS_SHARE = 0.25
FULL_MEMORY = 0.92
LOW_MFU = 0.35
_PIPELINE_WAITS = ("recv/pp", "send/pp")


class Bound(StrEnum):
    """What a run is limited by."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    DATA = "data"
    BUBBLE = "bubble"
    SAVING = "saving"
    HOST = "host"


_COSTS = (Bound.DATA, Bound.SAVING, Bound.BUBBLE, Bound.NETWORK, Bound.HOST, Bound.MEMORY)
_BY_PHASE = {
    "forward": Bound.COMPUTE,
    "backward": Bound.COMPUTE,
    "optimizer": Bound.MEMORY,
    "data": Bound.DATA,
    "checkpoint": Bound.SAVING,
    "snapshot": Bound.SAVING,
    "other": Bound.HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One sentence's worth."""

    bound: Bound
    share: float
    """Of a step, between 0 and 1."""
    because: str
    advice: str

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.bound}-bound: {self.because}; {self.advice}"


def judge(
    parts: Mapping[str, float],
    *,
    mfu: float | None = None,
    memory_share: float | None = None,
) -> Verdict:
    """Name what limits a run.

    Args:
        parts: seconds of a step by part (`step_timer`); their sum must be above 0.
        mfu: model FLOP utilization; None where the device's peak is not known.
        memory_share: peak of the allocator over the device's memory; None where not measured.

    Raises:
        ValueError: no time was measured.
    """
    total = sum(parts.values())
    if total <= 0:
        raise ValueError("a step without any time has no verdict")
    full = memory_share is not None and memory_share >= FULL_MEMORY
    full = full and (mfu is None or mfu < LOW_MFU)
    shares = _shares(parts, total=total)
    if full:
        shares[Bound.MEMORY] += shares[Bound.COMPUTE]
        shares[Bound.COMPUTE] = 0.0
    worst = max(_COSTS, key=lambda cost: (round(shares[cost], 9), -_COSTS.index(cost)))
    if shares[worst] < LOSS_SHARE:
        worst = Bound.COMPUTE
    because = _because(worst, share=shares[worst], parts=parts, mfu=mfu, memory=memory_share)
    return Verdict(
        bound=worst,
        share=shares[worst],
        because=because,
        advice=_advice(worst, parts=parts, full=full, mfu=mfu),
    )


def _shares(parts: Mapping[str, float], *, total: float) -> dict[Bound, float]:
    shares = dict.fromkeys(Bound, 0.0)
    for name, seconds in parts.items():
        bound = Bound.BUBBLE if name in _PIPELINE_WAITS else _BY_PHASE.get(name, Bound.NETWORK)
        shares[bound] += seconds / total
    return shares


def _because(
    bound: Bound,
    *,
    share: float,
    parts: Mapping[str, float],
    mfu: float | None,
    memory: float | None,
) -> str:
    percent = f"{share:.0%} of a step"
    match bound:
        case Bound.COMPUTE:
            efficiency = "" if mfu is None else f" at {mfu:.0%} MFU"
            return f"{percent} computes{efficiency}"
        case Bound.NETWORK:
            operation, _, axis = _longest_collective(parts).partition("/")
            return f"{percent} waits for other ranks, most for {operation} over {axis}"
        case Bound.DATA:
            return f"{percent} waits for samples"
        case Bound.BUBBLE:
            return f"{percent} waits for other stages of the pipeline"
        case Bound.SAVING:
            kind = max(("checkpoint", "snapshot"), key=lambda name: parts.get(name, 0.0))
            return f"{percent} stands still for a {kind}"
        case Bound.HOST:
            return f"{percent} passes between the phases"
        case Bound.MEMORY:
            filled = "" if memory is None else f", memory is {memory:.0%} full"
            return f"{percent} moves weights or cannot grow its batch{filled}"


def _advice(bound: Bound, *, parts: Mapping[str, float], full: bool, mfu: float | None) -> str:
    match bound:
        case Bound.COMPUTE if mfu is not None and mfu < LOW_MFU:
            return "raise micro_batch_size: there is memory left, and kernels are small"
        case Bound.COMPUTE:
            return "a lower precision or more devices are what is left"
        case Bound.NETWORK:
            return _network_advice(_longest_collective(parts))
        case Bound.DATA:
            return "keep the samples nearer (a memory-mapped file on a local disk)"
        case Bound.BUBBLE:
            return "more micro-batches per step, or an interleaved or zero-bubble schedule"
        case Bound.SAVING:
            return "raise checkpoint.every_steps (for snapshots checkpoint.snapshot_every_steps)"
        case Bound.HOST:
            return "raise log_every_steps, and look at a trace (`profile-now`)"
        case Bound.MEMORY if full:
            return "recompute activations or shard more, then raise micro_batch_size"
        case Bound.MEMORY:
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
    return max(sorted(waits), key=lambda name: waits[name])
