"""Locate the axes of a layout on a cluster. O(levels) for each."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.hardware import GpuCluster
from drumline_planner.constants import Constants
from drumline_planner.network import LinkEfficiency, Span, span
from drumline_planner.setup import TrainingSetup
from drumline_planner.work import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A setup's axes on a cluster."""

    inner: Spans
    data: Span
    shard: Span
    replicate: Span
    stages: Span


def fabric(setup: TrainingSetup, cluster: GpuCluster, constants: Constants) -> Fabric:
    """Return the location of each axis.

    Ranks are counted with the tensor axis fastest (`layout`).

    Args:
        setup: model, batch and layout.
        cluster: GPUs and links.
        constants: calibrated efficiencies.
    """
    layout = setup.layout
    efficiency = LinkEfficiency(
        domain=constants.domain, network=constants.network, latency=constants.latency
    )

    def along(ranks: int, stride: int) -> Span:
        return span(cluster, ranks=ranks, stride=stride, efficiency=efficiency)

    tensor, context = layout.tensor, layout.context
    samples = layout.shard * layout.replicate
    return Fabric(
        inner=Spans(
            tensor=along(tensor, 1),
            context=along(context, tensor),
            expert=along(layout.expert, tensor),
        ),
        data=along(samples * context, tensor),
        shard=along(setup.shard_ranks, tensor),
        replicate=along(layout.replicate, tensor * context * layout.shard),
        stages=along(layout.pipeline, tensor * context * samples),
    )
