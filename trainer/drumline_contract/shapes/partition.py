"""Division of layers into pipeline stages. The slowest stage sets the pace, so it is minimized.

A partition gives every stage a run of neighbouring layers and at least one. The first stage also
embeds and the last one predicts. With a big vocabulary these cost as much as several layers, so
both are counted. The partition is exact, not a heuristic. It has the smallest possible largest
stage, and among those the least sum of squares.

    4 layers of cost 1, head of cost 2, 2 stages:

    layers 0 1   | 2 3 + head     costs 2 and 4
    layers 0 1 2 | 3 + head       costs 3 and 3: chosen

Costs are floating-point operations before a run, and seconds once steps were measured. A new
partition is another layout. Checkpoints use parameter names, so a restore puts it into effect. No
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from drumline_contract.config import Family, ModelConfig
from drumline_contract.shapes.flops import flops_per_token, layer_products
from drumline_contract.shapes.layer_kinds import layer_kinds

Partition = tuple[range, ...]
"""The layers of each stage, by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of a model's parts, in any one unit."""

    layers: tuple[float, ...]
    embedding: float = 0.0
    """Cost of computing hidden states from the inputs, in the first stage."""
    head: float = 0.0
    """Cost of computing predictions from hidden states, in the last stage."""


def model_costs(model: ModelConfig, *, sequence_length: int) -> StageCosts:
    """Count floating-point operations per token, forward and backward, as `metrics.flops` does.

    Looking tokens up costs none; the first stage of a vision transformer multiplies its patches,
    and its classifier, once per image, is nothing.
    """
    vision = model.family is Family.VIT
    rows = model.channels * model.patch_size**2 if vision else model.vocab_size
    end = 6 * rows * model.hidden_size
    every = flops_per_token(model, sequence_length=sequence_length) - end
    products = [(6 * layer_products(kind), len(own)) for kind, own in layer_kinds(model)]
    # The attention's operations are what remains after all products.
    attention = (every - sum(each * count for each, count in products)) / model.layers
    return StageCosts(
        layers=tuple(each + attention for each, count in products for _ in range(count)),
        embedding=float(end if vision else 0),
        head=float(0 if vision else end),
    )


def partition(costs: StageCosts, *, stages: int) -> Partition:
    """Share the layers out; O(stages · layers²), where all layers cost the same O(layers²).

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if not 1 <= stages <= len(costs.layers):
        raise ValueError(f"{len(costs.layers)} layers do not fill {stages} stages")
    # Equal layers are the usual case and need no dynamic program.
    if len(set(costs.layers)) == 1:
        return _of_equal_layers(costs, stages=stages)
    # 1. how small the largest stage can be
    price = _prices(costs, stages=stages)
    limit, _ = _best(price, max, layers=len(costs.layers), stages=stages)

    # 2. of the partitions with no larger stage, the most even
    def most_even(total: float, stage: float) -> float:
        return total + stage**2 if stage <= limit else float("inf")

    _, ends = _best(price, most_even, layers=len(costs.layers), stages=stages)
    return tuple(range(*bounds) for bounds in zip((0, *ends), ends, strict=False))


def _of_equal_layers(costs: StageCosts, *, stages: int) -> Partition:
    """Partition layers of equal cost; only the first and the last stage's sizes are searched.

    Stages between them differ by at most one layer, the smaller ones first.
    """
    layers, each = len(costs.layers), costs.layers[0]
    if stages == 1:
        return (range(layers),)

    def judged(first: int | None, last: int) -> tuple[float, float, tuple[int, ...]]:
        # Stages between the ends share the rest as evenly as possible.
        middle = stages - (1 if first is None else 2)
        rest = layers - last - (first or 0)
        share, more = divmod(rest, middle) if middle else (0, 0)
        sizes = [share] * (middle - more) + [share + 1] * more
        sizes = [*(() if first is None else (first,)), *sizes, last]
        prices = [each * size for size in sizes]
        prices[0] += costs.embedding
        prices[-1] += costs.head
        # Compare the slowest stage first, then the sum of squares, then the ends.
        return max(prices), sum(price**2 for price in prices), tuple(accumulate(sizes))

    # A separate size of the first stage only matters if it embeds.
    between = 1 if costs.embedding and stages > 2 else 0
    choices: list[tuple[int | None, int]] = []
    for last in range(1, layers - stages + 2):
        if between or stages == 2:
            room = layers - last - (stages - 2)
            firsts = [room] if stages == 2 else range(1, room + 1)
            choices += [(first, last) for first in firsts]
        else:
            choices.append((None, last))
    ends = min(judged(*choice) for choice in choices)[2]
    return tuple(range(*bounds) for bounds in zip((0, *ends), ends, strict=False))


def repartition(
    current: Partition, costs: StageCosts, *, seconds: Sequence[float], gain: float = 0.05
) -> Partition:
    """Return a partition based on the seconds of each stage, forward and backward of a micro-batch.

    Within a stage the time is divided by `costs`. A slow GPU looks like costly layers, so work
    moves away from it. The current partition stays unless the largest stage would shrink by the
    share `gain`, because measurements vary and a change costs a restart.

    Args:
        current: the present partition.
        costs: costs of the layers, the embedding and the head.
        seconds: measured time of each stage.
        gain: least improvement of the largest stage, as a share.

    Raises:
        ValueError: not one positive time for each stage.
    """
    if len(seconds) != len(current) or min(seconds) <= 0:
        raise ValueError(f"{len(current)} stages need as many positive times, not {list(seconds)}")
    # Costs become seconds, so that a slow device counts as costly layers.
    measured = _scaled(current, costs, seconds)
    new = partition(measured, stages=len(current))
    # The gain must exceed measurement noise, because a new partition costs a restart.
    worth_it = max(stage_costs(new, measured)) <= (1 - gain) * max(seconds)
    return new if worth_it else current


def stage_costs(partition: Partition, costs: StageCosts) -> tuple[float, ...]:
    """Return the cost of each stage."""
    price = _prices(costs, stages=len(partition))
    return tuple(price(stage, own.start, own.stop) for stage, own in enumerate(partition))


def _scaled(current: Partition, costs: StageCosts, seconds: Sequence[float]) -> StageCosts:
    """Scale costs to seconds such that each stage costs what was measured."""
    expected = stage_costs(current, costs)
    rates = [taken / cost for taken, cost in zip(seconds, expected, strict=True)]
    return replace(
        costs,
        layers=tuple(
            costs.layers[layer] * rate
            for own, rate in zip(current, rates, strict=True)
            for layer in own
        ),
        embedding=costs.embedding * rates[0],
        head=costs.head * rates[-1],
    )


def _prices(costs: StageCosts, *, stages: int) -> Callable[[int, int, int], float]:
    """Return a function for the cost of a stage with layers start to stop, in O(1)."""
    # Prefix sums make the price of any run of layers O(1).
    sums = (0.0, *accumulate(costs.layers))

    def price(stage: int, start: int, stop: int) -> float:
        ends = (costs.embedding if stage == 0 else 0.0) + (
            costs.head if stage == stages - 1 else 0.0
        )
        return sums[stop] - sums[start] + ends

    return price


def _best(
    price: Callable[[int, int, int], float],
    combine: Callable[[float, float], float],
    *,
    layers: int,
    stages: int,
) -> tuple[float, tuple[int, ...]]:
    """Return the least combined price of all partitions, and where its stages end.

    Dynamic programming over how many layers the first stages have; `combine` never falls when its
    first argument rises, so that the best of a beginning is the beginning of a best.
    """
    # a beginning without layers is the empty one: price 0, no ends
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    # then with each stage, for every place where it can end: the best beginning and its last run
    for stage in range(stages):
        # Every later stage needs at least one layer.
        rest = stages - 1 - stage
        best = {
            stop: min(
                (combine(total, price(stage, start, stop)), (*ends, stop))
                for start, (total, ends) in best.items()
                if start < stop
            )
            for stop in range(stage + 1, layers - rest + 1)
        }
    return best[layers]
