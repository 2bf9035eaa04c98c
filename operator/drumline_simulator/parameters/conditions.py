"""Define the conditions of every side of the simulated week: failures, spot, boots and prices."""

from __future__ import annotations

from typing import Final

from drumline_simulator.cluster import Autoscaling
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.parameters.model import Condition, Figure, Source

_RSC: Final = Source(
    text="Revisiting Reliability in Large-Scale Machine Learning Research Clusters: a job of"
    " 1,024 GPUs fails every 7.9 h; its projection for 16,384 GPUs, 3.6 times fewer, is not taken",
    url="https://arxiv.org/abs/2410.21680",
)
_LLAMA: Final = Source(
    text="The Llama 3 Herd of Models, table 5: software is 12.9 % of the unexpected interruptions",
    url="https://arxiv.org/abs/2407.21783",
)
_BYTEROBUST: Final = Source(
    text="Robust LLM Training Infrastructure at ByteDance: hangs are 9.9 % of the incidents",
    url="https://arxiv.org/abs/2509.16293",
)
_PREEMPTIBLE: Final = Source(
    text="assumed: Modeling The Temporally Constrained Preemptions of Transient Cloud VMs has 24 h"
    " as the longest life of a preemptible VM",
    url="https://arxiv.org/abs/1911.05160",
)
_NOTICE: Final = Source(
    text="Cloud GPU Spot Instance Availability and Interruption Rates: AWS gives two minutes",
    url="https://www.thundercompute.com/blog/cloud-gpu-spot-instance-availability",
)
_PRICE: Final = Source(
    text="Spot GPU Pricing (March 2026): H100 of AWS, on demand 6.88, spot 3.44 dollars",
    url="https://deploybase.ai/articles/spot-gpu-pricing",
)
_IDLE: Final = Source(
    text="cluster-autoscaler's default of --scale-down-unneeded-time",
    url="https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md",
)
_ASSUMED: Final = Source(text="assumed; the same for all")

# 1,024 GPUs x 7.9 h = 8,090 GPU-hours.
GPU_HOURS_PER_FAILURE: Final = Condition(
    means="between two failures of what runs on a GPU",
    unit="GPU-hours",
    figure=Figure(value=8090.0, source=_RSC),
)
PROCESS_SHARE: Final = Condition(
    means="failures that end a process and leave the node",
    unit="of all",
    figure=Figure(value=0.129, source=_LLAMA),
)
HANG_SHARE: Final = Condition(
    means="failures in which a process stands still",
    unit="of all",
    figure=Figure(value=0.099, source=_BYTEROBUST),
)
NODE_REPAIR: Final = Condition(
    means="a lost node, until one is in its place",
    unit="s",
    figure=Figure(value=3600.0, source=_ASSUMED),
)
# An exponential lifetime of this mean. The paper only gives the longest life.
SPOT_HOURS: Final = Condition(
    means="a spot node, until it is taken back",
    unit="h",
    figure=Figure(value=24.0, source=_PREEMPTIBLE),
)
SPOT_NOTICE: Final = Condition(
    means="notice of that", unit="s", figure=Figure(value=120.0, source=_NOTICE)
)
SPOT_AWAY: Final = Condition(
    means="until another spot node can be had",
    unit="s",
    figure=Figure(value=900.0, source=_ASSUMED),
)
# Log-normal, because boots have a floor and a long tail.
BOOT: Final = Condition(
    means="boot of an autoscaled node, median (log-normal, spread 0.4)",
    unit="s",
    figure=Figure(value=180.0, source=_ASSUMED),
)
# Stockouts: the cloud has no such node at the moment.
BOOT_MISSING: Final = Condition(
    means="asks for a node that bring none and are made again after 600 s",
    unit="of all",
    figure=Figure(value=0.05, source=_ASSUMED),
)
IDLE: Final = Condition(
    means="an autoscaled node without a job goes after",
    unit="s",
    figure=Figure(value=600.0, source=_IDLE),
)
PRICE: Final = Condition(
    means="a GPU-hour that is always paid", unit="$", figure=Figure(value=6.88, source=_PRICE)
)
SPOT_PRICE: Final = Condition(
    means="a GPU-hour of a spot node, mean; by the hour up to 20 % more or less",
    unit="$",
    figure=Figure(value=3.44, source=_PRICE),
)
CONDITIONS: Final = (
    GPU_HOURS_PER_FAILURE,
    PROCESS_SHARE,
    HANG_SHARE,
    NODE_REPAIR,
    SPOT_HOURS,
    SPOT_NOTICE,
    SPOT_AWAY,
    BOOT,
    BOOT_MISSING,
    IDLE,
    PRICE,
    SPOT_PRICE,
)
PRICE_SWING: Final = 0.2
_BOOT_SPREAD: Final = 0.4


def failure_rates(*, scale: float = 1.0) -> FailureRates:
    """Return the assumed failure rates, multiplied by `scale`."""
    return FailureRates(
        # A scale of 0 turns failures off. Infinity is the time between two of them.
        gpu_hours=GPU_HOURS_PER_FAILURE.figure.value / scale if scale else float("inf"),
        process_share=PROCESS_SHARE.figure.value,
        hang_share=HANG_SHARE.figure.value,
        repair_seconds=NODE_REPAIR.figure.value,
    )


def spot_rates(*, scale: float = 1.0) -> SpotRates:
    """Return the assumed reclaim rates, multiplied by `scale`, above 0."""
    return SpotRates(
        node_hours=SPOT_HOURS.figure.value / scale,
        notice_seconds=SPOT_NOTICE.figure.value,
        away_seconds=SPOT_AWAY.figure.value,
    )


def autoscaling() -> Autoscaling:
    """Return the autoscaling of the spot nodes."""
    return Autoscaling(
        boot_seconds=BOOT.figure.value,
        boot_spread=_BOOT_SPREAD,
        missing_share=BOOT_MISSING.figure.value,
        idle_seconds=IDLE.figure.value,
    )
