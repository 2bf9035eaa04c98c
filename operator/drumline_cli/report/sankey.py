"""Draw the use of GPU-seconds as a Sankey diagram: held, by state, and lost by fault class.

Widths are in proportion to GPU-seconds, but what is not nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drumline_cli.formatting import count, percent
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report.charts import picture, slug
from drumline_cli.report.model import JobReport

_TALL: Final = 150
"""Height of all GPU-seconds."""
_LEAST: Final = 2.0
_GAP: Final = 22
_BAR: Final = 14
_COLUMNS: Final = (0, 330, 660)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FlowNode:
    name: str
    gpu_seconds: float
    colour: str
    column: int
    top: float
    tall: float


def sankey(report: JobReport) -> Markup:
    """Return the diagram. The report has shares."""
    whole = sum(share.gpu_seconds for share in report.shares)
    # The total is the height of the first column.
    held = _FlowNode(name="Held", gpu_seconds=whole, colour="all", column=0, top=0.0, tall=_TALL)
    states = _stacked(
        [(share.state, share.gpu_seconds, slug(share.state)) for share in report.shares],
        whole=whole,
        column=1,
    )
    lost = _stacked(
        [(loss.fault_class, loss.gpu_seconds, slug(loss.state)) for loss in report.losses],
        whole=whole,
        column=2,
        # The third column begins at the first state that lost time.
        top=next((each.top for each in states if each.name in _LOSING), 0.0),
    )
    flows = [*_flows([held], [(held, each) for each in states])]
    # Losses belong to a state, so each flow starts there.
    by_name = {state.name: state for state in states}
    pairs = [(by_name[loss.state], node) for loss, node in zip(report.losses, lost, strict=True)]
    flows += _flows(states, pairs)
    nodes = [held, *states, *lost]
    said = ", ".join(f"{share.state} {percent(share.share)}" for share in report.shares)
    if report.losses:
        causes = ", ".join(
            f"{each.fault_class} {count(each.gpu_seconds)} ({each.state.lower()})"
            for each in report.losses
        )
        said += f"; lost by cause, in GPU-seconds: {causes}"
    return picture(
        "shares",
        "Use of the GPU-seconds",
        said,
        *flows,
        *(_drawn(node, whole=whole) for node in nodes),
        height=round(max(node.top + node.tall for node in nodes)) + 24,
    )


_LOSING: Final = ("Recovering", "Repeated")


def _stacked(
    parts: list[tuple[str, float, str]], *, whole: float, column: int, top: float = 0.0
) -> list[_FlowNode]:
    nodes: list[_FlowNode] = []
    for name, gpu_seconds, colour in parts:
        # A minimum height, so that small losses stay visible.
        tall = max(_TALL * gpu_seconds / whole, _LEAST)
        nodes.append(
            _FlowNode(
                name=name,
                gpu_seconds=gpu_seconds,
                colour=colour,
                column=column,
                top=top,
                tall=tall,
            )
        )
        top += tall + _GAP
    return nodes


def _flows(sources: list[_FlowNode], pairs: list[tuple[_FlowNode, _FlowNode]]) -> Iterator[Markup]:
    """Return a ribbon from each source to each target. Those of a source lie below each other."""
    left_at = {source.name: source.top for source in sources}
    for source, target in pairs:
        # Ribbons of a source are stacked in the order of the targets.
        part = source.tall * target.gpu_seconds / source.gpu_seconds
        top = left_at[source.name]
        left_at[source.name] += part
        x0, x1 = _COLUMNS[source.column] + _BAR, _COLUMNS[target.column]
        middle = (x0 + x1) / 2
        low = target.top + target.tall
        path = (
            f"M{x0} {top + 4:.1f} C{middle:.0f} {top + 4:.1f} {middle:.0f} {target.top + 4:.1f}"
            f" {x1} {target.top + 4:.1f} L{x1} {low + 4:.1f} C{middle:.0f} {low + 4:.1f}"
            f" {middle:.0f} {top + part + 4:.1f} {x0} {top + part + 4:.1f} Z"
        )
        yield element("path", d=path, class_=f"band flow {target.colour}")


def _drawn(node: _FlowNode, *, whole: float) -> Markup:
    x = _COLUMNS[node.column]
    share = node.gpu_seconds / whole
    said = f"{node.name}: {count(node.gpu_seconds)} GPU-seconds, {percent(share)}"
    return joined(
        element(
            "rect",
            element("title", said),
            x=x,
            y=node.top + 4,
            width=_BAR,
            height=node.tall,
            class_=f"band {node.colour}",
        ),
        element(
            "text",
            f"{node.name} {percent(share)}",
            x=x + _BAR + 8,
            y=node.top + 4 + max(node.tall / 2, 6) + 5,
        ),
    )
