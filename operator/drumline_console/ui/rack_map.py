"""Render the nodes of a pool as tiles by rack: their jobs, reservations and state.

Nodes of the same job have the same color. The letters in a tile, its tooltip and the list of nodes
name the job too, so the page does not depend on colors.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from drumline.overview.nodes import READY
from drumline.overview.rows import NodeRow
from drumline_cli.formatting import many
from drumline_cli.markup import Markup, element, joined
from drumline_console.ui.links import job_path

COLOURS: Final = 6
"""Red and grey are used for nodes that are out of service and free."""
MOST_NODES: Final = 1200
_MOST_LETTERED: Final = 96
"""With more nodes, tiles are small squares without letters. Their tooltips name the jobs."""
_LETTERS: Final = 9


def colours_of(jobs: Iterable[str]) -> Mapping[str, int]:
    """Assign a color to each job, 1 to `COLOURS`, distinct while there are enough colors.

    Args:
        jobs: `namespace/name`, oldest first. These keep their color when younger jobs come and go.
    """
    used: Counter[int] = Counter()
    colours: dict[str, int] = {}
    for job in dict.fromkeys(jobs):
        # A checksum is stable between processes, unlike Python's hash.
        first = crc32(job.encode())
        # The next free colour after the preferred one.
        around = [(first + step) % COLOURS + 1 for step in range(COLOURS)]
        colours[job] = min(around, key=lambda colour: used[colour])
        used[colours[job]] += 1
    return colours


def rack_map(nodes: Sequence[NodeRow], colours: Mapping[str, int]) -> Markup:
    """Render all pools. A very large cluster shows only the first nodes.

    Args:
        nodes: nodes by pool and rack.
        colours: colors of the jobs.
    """
    pools: dict[str, dict[str, list[NodeRow]]] = defaultdict(lambda: defaultdict(list))
    for node in nodes[:MOST_NODES]:
        pools[node.pool]["/".join(node.domains)].append(node)
    # Letters would not fit on a large map.
    is_dense = len(nodes) > _MOST_LETTERED
    left = len(nodes) - MOST_NODES
    more = element("p", f"{many(left, 'node')} more: drumline nodes", class_="soft")
    sections = (_pool(name, racks, colours) for name, racks in pools.items())
    whole = joined(*sections, more if left > 0 else "")
    return element("div", whole, class_="dense") if is_dense else whole


def _pool(name: str, racks: dict[str, list[NodeRow]], colours: Mapping[str, int]) -> Markup:
    nodes = [node for rack in racks.values() for node in rack]
    held, gpus = sum(node.held_gpus for node in nodes), sum(node.gpus for node in nodes)
    out = sum(node.state != READY for node in nodes)
    sick = f", {many(out, 'node')} out of service" if out else ""
    head = element("h3", name, element("small", f"{held} of {_whole(gpus, nodes[0])} held{sick}"))
    return joined(
        head, element("div", *(_rack(*rack, colours) for rack in racks.items()), class_="racks")
    )


def _rack(domain: str, nodes: list[NodeRow], colours: Mapping[str, int]) -> Markup:
    tiles = (element("li", _tile(node, colours)) for node in nodes)
    label = element("h4", domain) if domain else ""
    return element("div", label, element("ul", *tiles), class_="rack")


def _tile(node: NodeRow, colours: Mapping[str, int]) -> Markup:
    # A job that holds the node wins over one that will get it.
    job = node.jobs[0] if node.jobs else node.promised_to[0] if node.promised_to else ""
    other = node.workloads[0] if node.workloads and not node.jobs else ""
    classes = ["tile"]
    if node.state != READY:
        # Faults are visible even on a node that a job holds.
        classes.append("sick")
    if node.jobs:
        classes.append(f"held c{colours.get(job, 1)}")
    elif other:
        classes.append("held foreign")
    elif node.promised_to:
        classes.append(f"promised c{colours.get(job, 1)}")
    letters = (other or job).rpartition("/")[2][:_LETTERS] or (
        "" if node.state == READY else node.state
    )
    text = _sentence(node)
    if not job:
        return element("span", letters, class_=" ".join(classes), title=text)
    return element("a", letters, href=job_path(job), class_=" ".join(classes), title=text)


def _whole(number: int, node: NodeRow) -> str:
    """Return an amount in the unit of the node's pool."""
    return many(number, "GPU" if node.parts_per_gpu == 1 else "part")


def _sentence(node: NodeRow) -> str:
    """Describe the tile in words."""
    parts = [f"{node.node}: {node.held_gpus} of {_whole(node.gpus, node)} held"]
    if node.jobs or node.workloads:
        parts.append(f"by {', '.join((*node.jobs, *node.workloads))}")
    if node.promised_to:
        parts.append(f"promised to {', '.join(node.promised_to)}")
    if node.state != READY:
        parts.append(f"{node.state}: {node.why}" if node.why else node.state)
    elif node.why:
        parts.append(f"suspect: {node.why}")
    return "; ".join(parts)
