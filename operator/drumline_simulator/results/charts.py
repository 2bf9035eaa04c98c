"""Draw charts of a simulation with matplotlib. Only this module of the package needs it.

Each function returns one figure; `png` and `svg` encode it. A colour is a policy in every chart
that compares policies, and a queue in the chart of GPU allocations.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's own types leave every **kwargs open

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from io import BytesIO, StringIO
from typing import Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from drumline_scheduler import Node
from drumline_simulator.results.gpu_rows import blocks
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.results.statistics import (
    QueueShare,
    largest_tenth,
    quantile,
    use_over_time,
    waits_by_size,
)
from drumline_simulator.results.time_account import TimeAccount

# Seven colours: more series than this cannot be told apart in one chart.
_COLOURS: Final = ("#0b7a75", "#d1783c", "#7d6ba0", "#5b8c3a", "#b23a48", "#3c6fb2", "#8a8a8a")
_INK: Final = "#222222"
_FAINT: Final = "#d9d9d9"
_HOUR: Final = 3600.0
_BINS: Final = 120
# More rows would be thinner than a pixel of the picture.
_MOST_ROWS: Final = 1024
_FEW_BLOCKS: Final = 300
"""Maximum number of blocks with edges. With more blocks, edges would hide small blocks."""

NamedOutcomes = Sequence[tuple[str, Outcome]]
"""Outcomes with the name of their policy."""


def utilisation(outcomes: NamedOutcomes) -> Figure:
    """Draw utilisation over time."""
    figure, axes = _axes("Allocated share of the cluster", height=3.2)
    # More policies than colours are cut off, so that no colour has two meanings.
    for (name, outcome), colour in zip(outcomes, _COLOURS, strict=False):
        times, use = use_over_time(outcome, bins=_BINS)
        axes.plot(
            [at / _HOUR for at in times],
            [100 * part for part in use],
            label=name,
            color=colour,
            linewidth=1.6,
        )
    # All policies share one trace, so the first outcome's submissions serve for all.
    _, first = outcomes[0]
    last = (first.last_submission - first.began_at) / _HOUR
    axes.axvline(last, color=_INK, linewidth=0.8, linestyle=":")
    axes.annotate("last submission", (last, 3), xytext=(4, 0), textcoords="offset points")
    axes.set_ylim(0, 104)
    axes.set_xlim(left=0)
    axes.set_xlabel("hours")
    axes.set_ylabel("% of GPUs")
    axes.legend(loc="lower left", frameon=False)
    return figure


def waits(outcomes: NamedOutcomes) -> Figure:
    """Draw the median and 95th percentile of the waits by job size."""
    figure, axes = _axes("Waiting time of jobs by size", height=3.4)
    sizes = sorted({job.gpus for _, outcome in outcomes for job in outcome.jobs})
    # The bars of one size take 80 % of its slot. The rest separates the sizes.
    width = 0.8 / len(outcomes)
    for number, (name, outcome) in enumerate(outcomes):
        held = dict(waits_by_size(outcome))
        # Centred: an even number of policies leaves the tick between two bars.
        shift = (number - (len(outcomes) - 1) / 2) * width
        at = [sizes.index(size) + shift for size in held]
        medians = [_minutes(quantile(held[size], 0.5)) for size in held]
        highs = [_minutes(quantile(held[size], 0.95)) for size in held]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.vlines(at, medians, highs, color=colour, linewidth=2.2, alpha=0.55)
        axes.plot(at, medians, "o", color=colour, markersize=5, label=name)
        axes.plot(at, highs, "_", color=colour, markersize=9, markeredgewidth=2)
    # Waits span seconds to days. A linear axis would show only the largest jobs.
    axes.set_yscale("log")
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlabel("GPUs of the job (dot: median, bar: 95th percentile)")
    axes.set_ylabel("minutes waited (at least 0.1)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(outcomes), frameon=False)
    return figure


def largest(outcomes: NamedOutcomes) -> Figure:
    """Draw the distribution of the waits of the tenth of the jobs with the most GPUs."""
    figure, axes = _axes("Waiting time of the largest tenth of the jobs", height=3.0)
    for (name, outcome), colour in zip(outcomes, _COLOURS, strict=False):
        held = sorted(job.waited_seconds(outcome.ended_at) for job in largest_tenth(outcome.jobs))
        # An empirical distribution: a step at each wait, so that no value is interpolated.
        parts = [100 * (i + 1) / len(held) for i in range(len(held))]
        axes.step(
            [wait / _HOUR for wait in held],
            parts,
            where="post",
            label=name,
            color=colour,
            linewidth=1.8,
        )
    axes.axhline(95, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.set_xlabel("hours waited")
    axes.set_ylabel("% of these jobs")
    axes.legend(loc="lower right", frameon=False)
    return figure


def fairness(by_policy: Sequence[tuple[str, Sequence[QueueShare]]]) -> Figure:
    """Draw each queue's requested share, its share by weight, and its held share by policy."""
    figure, axes = _axes("Requested, due and allocated share of each queue", height=3.2)
    _, first = by_policy[0]
    series: list[tuple[str, list[float], str]] = [
        # Grey for shares that no policy changes, colours for the policies.
        ("requested, of all work", [share.requested for share in first], "#c9c9c9"),
        ("due by weight", [share.weight_share for share in first], "#6b6b6b"),
    ]
    for (name, shares), colour in zip(by_policy, _COLOURS, strict=False):
        series.append((f"held, {name}", [share.held for share in shares], colour))
    width = 0.82 / len(series)
    for number, (name, parts, colour) in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * width
        axes.bar(
            [i + shift for i in range(len(parts))],
            [100 * part for part in parts],
            width=width * 0.92,
            color=colour,
            label=name,
        )
    axes.set_xticks(range(len(first)), [share.queue for share in first])
    axes.set_ylabel("% (loaded time)")
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    return figure


def gpu_allocation(name: str, outcome: Outcome, nodes: Sequence[Node]) -> Figure:
    """Draw the allocation of GPUs over time: a row per GPU, a color per queue.

    Args:
        name: name of the policy, for the title.
        outcome: result of the simulation.
        nodes: nodes of the cluster.
    """
    # Phase 1: whole nodes that fit, because half of a node would mislead.
    shown: list[Node] = []
    rows = 0
    for node in nodes:
        if rows + node.allocatable.gpus > _MOST_ROWS:
            break
        shown.append(node)
        rows += node.allocatable.gpus
    more = "" if len(shown) == len(nodes) else f", the first {rows} of {outcome.gpus}"
    height = min(5.2, 1.7 + rows / 40)
    figure, axes = _axes(f"Queue of each GPU over time ({name}{more})", height=height)
    queues = sorted({job.queue for job in outcome.jobs})
    colour_of = {queue: _COLOURS[i % len(_COLOURS)] for i, queue in enumerate(queues)}
    # Phase 2: one polygon per block. Thousands of single patches are slow to draw.
    shapes: list[list[tuple[float, float]]] = []
    colours: list[str] = []
    for block in blocks(outcome, shown):
        left = (block.begins_at - outcome.began_at) / _HOUR
        right = (block.ends_at - outcome.began_at) / _HOUR
        low, high = block.row, block.row + block.rows
        shapes.append([(left, low), (right, low), (right, high), (left, high)])
        colours.append(colour_of[outcome.jobs[block.job].queue])
    edge = 0.8 if len(shapes) < _FEW_BLOCKS else 0.12
    axes.add_collection(
        PolyCollection(shapes, facecolors=colours, edgecolors="white", linewidths=edge)
    )
    # An outcome without time still needs an axis, and matplotlib rejects equal limits.
    axes.set_xlim(0, max(1e-9, (outcome.ended_at - outcome.began_at) / _HOUR))
    # Inverted: the first node is at the top, as in every table.
    axes.set_ylim(rows, 0)
    axes.grid(visible=False)
    axes.set_xlabel("hours")
    axes.set_ylabel("GPU, by node")
    patches = [Patch(color=colour_of[queue], label=queue) for queue in queues[: len(_COLOURS)]]
    axes.legend(  # above the axes, which the blocks fill
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(patches),
        frameon=False,
        fontsize=8,
    )
    return figure


def preemptions(outcomes: NamedOutcomes) -> Figure:
    """Draw preempted GPUs over time, cumulative."""
    figure, axes = _axes("Preempted GPUs, cumulative", height=2.8)
    for (name, outcome), colour in zip(outcomes, _COLOURS, strict=False):
        total, times, taken = 0, [0.0], [0]
        for eviction in outcome.evictions:
            total += eviction.gpus
            times.append((eviction.at - outcome.began_at) / _HOUR)
            taken.append(total)
        # The last point extends the line to the end of the simulation.
        times.append((outcome.ended_at - outcome.began_at) / _HOUR)
        taken.append(total)
        axes.step(times, taken, where="post", label=name, color=colour, linewidth=1.8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours")
    axes.set_ylabel("GPUs")
    axes.legend(loc="upper left", frameon=False)
    return figure


def start_forecasts(outcome: Outcome) -> Figure:
    """Draw expected and actual starts of pending jobs."""
    figure, axes = _axes("Expected and actual starts", height=4.4)
    # Jobs without an expected start cannot be compared, so they are left out.
    known = [
        (start, expected_at)
        for start in outcome.forecasts
        if (expected_at := start.expected_at) is not None
    ]
    median = [_minutes(expected_at - start.made_at) for start, expected_at in known]
    real = [_minutes(start.started_at - start.made_at) for start, _ in known]
    bands = [
        (_minutes(at - start.made_at) for at in (start.started_at, expected_at, latest_at))
        for start, expected_at in known
        if (latest_at := start.latest_at) is not None
    ]
    for started, expected, latest in bands:
        axes.vlines(started, expected, latest, color=_COLOURS[0], alpha=0.18, linewidth=1)
    axes.plot(real, median, ".", color=_COLOURS[0], markersize=4, alpha=0.6, label="p50; line: p90")
    # A diagonal marks forecasts that were exact. Points above it started earlier than expected.
    ends = (0.1, max([1.0, *median, *real]))
    axes.plot(ends, ends, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("minutes until the start")
    axes.set_ylabel("minutes expected")
    axes.legend(loc="upper left", frameon=False)
    return figure


def gpu_time(accounts: Sequence[tuple[str, TimeAccount]]) -> Figure:
    """Draw the use of the GPU-hours that jobs held, without the useful ones.

    Args:
        accounts: accounts with the name of their side.
    """
    figure, axes = _axes("GPU-hours that were allocated but not useful", height=2.8)
    names = [name for name, _ in accounts]
    left = [0.0] * len(accounts)
    kinds = [each.name for each in fields(TimeAccount) if each.name != "useful"]
    for kind, colour in zip(kinds, _COLOURS, strict=False):
        parts = [100 * getattr(account, kind) / account.held for _, account in accounts]
        axes.barh(names, parts, left=left, color=colour, label=kind, height=0.6)
        # Stacked bars: each kind begins at the end of the kinds before it.
        left = [before + part for before, part in zip(left, parts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("% of the allocated GPU-hours")
    axes.legend(frameon=False, ncols=len(kinds))
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    written = BytesIO()
    figure.savefig(written, format="png", dpi=140)
    return written.getvalue()


def svg(figure: Figure) -> str:
    """Return a figure as SVG, identical for the same figure."""
    written = StringIO()
    # A date in the file would make equal figures differ in git.
    metadata: Mapping[str, None] = {"Date": None, "Creator": None}
    figure.savefig(written, format="svg", metadata=dict(metadata))
    return written.getvalue()


def _axes(title: str, *, height: float) -> tuple[Figure, Axes]:
    # `Figure` instead of pyplot: pyplot keeps every figure alive in a global table.
    figure = Figure(figsize=(9.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    return figure, axes


def _minutes(seconds: float) -> float:
    """Return minutes for a logarithmic axis, which has no zero."""
    return max(0.1, seconds / 60)
