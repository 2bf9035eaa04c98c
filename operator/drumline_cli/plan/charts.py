"""A plan's pictures as PNG, drawn by matplotlib: the only module of this package that needs it.

The layouts beside each other, by what they hold and by what they wait for; memory against time; and
speed by number of GPUs. Every figure stands in the plan's table too.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's own types leave every **kwargs open

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drumline_cli.plan.model import Plan
from drumline_planner.auto import recompute_words
from drumline_planner.search import Planned

_COLOURS: Final = (
    "#3c6fb2",
    "#d1783c",
    "#5b8c3a",
    "#b23a48",
    "#0b7a75",
    "#7d6ba0",
    "#c9a227",
    "#9d755d",
    "#d98aa0",
    "#8a8a8a",
    "#444444",
)
_FAINT: Final = "#d9d9d9"
_LIMIT: Final = "#b23a48"
_GIB: Final = 2**30


def drawn(plan: Plan) -> dict[str, Figure]:
    """Return all pictures of this plan, by file name."""
    figures: dict[str, Figure] = {}
    planned = plan.result.planned
    # Pictures exist only for data that the plan has, so folders differ by plan.
    if planned:
        figures["memory"] = _memory(planned, capacity=plan.request.goal.capacity)
        figures["step"] = _step(planned)
    if len(plan.front) > 1:
        figures["memory-against-time"] = _front(plan.front)
    points = [(gpus, each) for gpus, each in plan.curve if each is not None]
    if len(points) > 1:
        figures["speed"] = _speed(points)
    return figures


def png(figure: Figure) -> bytes:
    """Return the picture as a file."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=144, bbox_inches="tight")
    return file.getvalue()


def _memory(planned: Sequence[Planned], *, capacity: int) -> Figure:
    figure, axes = _axes("Memory of the fullest rank", bars=len(planned))
    # One bar per layout, in the order of the table.
    sizes = [{line.name: line.size / _GIB for line in each.bill.lines} for each in planned]
    _stacked(axes, planned, sizes)
    axes.axvline(capacity / _GIB, color=_LIMIT, linewidth=1.4, linestyle="--")
    axes.annotate(
        "to use",
        (capacity / _GIB, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        color=_LIMIT,
    )
    axes.set_xlabel("GiB")
    return figure


def _step(planned: Sequence[Planned]) -> Figure:
    figure, axes = _axes("Parts of a step", bars=len(planned))
    # One unit for all bars, by the fastest layout.
    scale, unit = (1.0, "seconds") if planned[0].time.seconds >= 1 else (1000.0, "milliseconds")
    times = [
        {str(part): scale * seconds for part, seconds in each.time.parts.items()}
        for each in planned
    ]
    _stacked(axes, planned, times)
    axes.set_xlabel(unit)
    return figure


def _front(front: Sequence[Planned]) -> Figure:
    figure, axes = _axes("Memory against time: no other layout is both smaller and faster", bars=6)
    sizes = [each.bill.total / _GIB for each in front]
    times = [each.time.seconds for each in front]
    # `post` draws the step after the point, as the front is defined.
    axes.step(sizes, times, where="post", color=_FAINT, linewidth=1.4, zorder=1)
    axes.scatter(sizes, times, color=_COLOURS[0], zorder=2)
    _numbered(axes, list(zip(sizes, times, strict=True)), [_name(each) for each in front])
    axes.set_xlabel("GiB of the fullest rank")
    axes.set_ylabel("seconds of a step")
    axes.margins(x=0.06, y=0.12)
    return figure


def _speed(points: Sequence[tuple[int, Planned]]) -> Figure:
    figure, axes = _axes("Speed per GPU by number of GPUs", bars=6)
    sizes = [gpus for gpus, _ in points]
    speeds = [each.time.tokens_per_second / gpus for gpus, each in points]
    axes.plot(sizes, speeds, "o-", color=_COLOURS[0], linewidth=1.6)
    names = [f"{gpus} GPUs: {_name(each)}" for gpus, each in points]
    _numbered(axes, list(zip(sizes, speeds, strict=True)), names)
    # GPU counts double, so a logarithmic axis has equal distances.
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(gpus) for gpus in sizes])
    axes.minorticks_off()
    axes.margins(x=0.1)
    # The axis begins at zero, so that small losses look small.
    axes.set_ylim(0, 1.15 * max(speeds))
    axes.set_xlabel("GPUs")
    axes.set_ylabel("tokens/s of a GPU")
    return figure


def _stacked(axes: Axes, planned: Sequence[Planned], parts: Sequence[Mapping[str, float]]) -> None:
    """Return a bar a layout, the best on top.

    Parts below a hundredth of the longest bar are `rest`.
    """
    # Very small parts would fill the legend.
    least = 0.01 * max(sum(each.values()) for each in parts)
    names = [
        name
        for name in dict.fromkeys(name for each in parts for name in each)
        if max(each.get(name, 0.0) for each in parts) >= least
    ]
    left = [0.0] * len(parts)
    rows = range(len(parts))
    for number, name in enumerate([*names, "rest"]):
        widths = [
            each.get(name, 0.0)
            if name != "rest"
            else sum(value for part, value in each.items() if part not in names)
            for each in parts
        ]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.barh(rows, widths, left=left, color=colour, label=name, height=0.62)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(rows, [_name(each) for each in planned])
    # The best layout is the first row, so it belongs at the top.
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False, fontsize=8)


def _numbered(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write a number at each point, on alternating sides of the line."""
    for number, point in enumerate(points, 1):
        above = number % 2 > 0
        axes.annotate(
            str(number),
            point,
            xytext=(5, 6) if above else (-5, -6),
            textcoords="offset points",
            ha="left" if above else "right",
            va="bottom" if above else "top",
            fontsize=9,
        )
    # A legend with numbers replaces labels that would overlap.
    legend = "\n".join(f"{number}  {name}" for number, name in enumerate(names, 1))
    axes.text(1.03, 1.0, legend, transform=axes.transAxes, va="top", fontsize=8, linespacing=1.5)


def _name(planned: Planned) -> str:
    """Layout, micro-batch, recompute."""
    size, recompute = planned.setup.micro_batch, recompute_words(planned)
    return f"{planned.layout}, micro-batch {size}, recompute {recompute}"


def _axes(title: str, *, bars: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, 1.2 + 0.42 * max(bars, 3)))
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, pad=16)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, axis="x", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes
