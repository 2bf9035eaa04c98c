"""Messages about a pool that cannot hold a job, each with the command that shows the cause.

The scheduler uses them in rejections, which `drumline decide` and a job's status show. The doctor
uses the same messages. Pure: text from values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FIELDS: Final = {
    "cpu_millis": "cpu",
    "memory_bytes": "memory",
    "ephemeral_bytes": "ephemeral-storage",
    "pods": "pods",
}
"""Names of the scheduler's resources in `status.allocatable` of a node."""
_MAX_NAMES: Final = 3
_MAX_SELECTOR_CHARS: Final = 120


def no_nodes(*, pool: str, selector: str) -> str:
    """Return that no node belongs to a pool.

    Args:
        pool: its name.
        selector: its nodeSelector as `key=value,key=value`; empty: not known.
    """
    if not selector or len(selector) > _MAX_SELECTOR_CHARS:
        return (
            f"no node matches the nodeSelector of pool {pool}. See it with kubectl get gpupool"
            f" {pool} -o yaml"
        )
    keys = ",".join(pair.partition("=")[0] for pair in selector.split(","))
    return (
        f"no node matches the nodeSelector of pool {pool} ({selector}). See the labels with kubectl"
        f" get nodes -L {keys}"
    )


def nodes_lack_label(*, pool: str, nodes: Sequence[str], count: int, level: str, label: str) -> str:
    """Return that nodes do not say where in the network they are.

    Args:
        pool: its name.
        nodes: names of the nodes without the label.
        count: number of nodes of the pool.
        level: the topology level.
        label: the level's nodeLabel; empty: not known.
    """
    named = f"the label {label} of level {level}" if label else f"the label of level {level}"
    shown = f". See it with kubectl get nodes -L {label}" if label else ""
    return f"{_of(nodes, count)} of pool {pool} lack {named}{shown}"


def nodes_offer_none(
    *, pool: str, nodes: Sequence[str], count: int, resource: str, driver: str = ""
) -> str:
    """Return that nodes offer none of a resource, with the usual cause.

    Args:
        pool: its name.
        nodes: names of the nodes without the resource.
        count: number of nodes of the pool.
        resource: name of the resource in Kubernetes, such as `nvidia.com/gpu`.
        driver: DRA driver whose devices the pool counts instead; empty: none.
    """
    if driver:
        return (
            f"{_of(nodes, count)} of pool {pool} offer no device of {driver}. Is its DRA driver"
            " running, and are its devices free of taints? See it with kubectl get resourceslices"
        )
    return (
        f"{_of(nodes, count)} of pool {pool} offer no {resource}. Is its device plugin running?"
        f" See it with {_offers(resource)}"
    )


def larger_than_any_node(*, pool: str, asked: str, most: str, node: str, resource: str) -> str:
    """Return that one pod requests more than the largest node offers.

    Args:
        pool: its name.
        asked: the request of one pod, such as `16 GPUs`.
        most: the amount that the largest node offers, in the same unit.
        node: the name of that node.
        resource: name of the resource in Kubernetes or in the scheduler.
    """
    return (
        f"a pod requests {asked}, which is larger than any node of pool {pool}: the largest,"
        f" {node}, offers {most}. See it with {_offers(_FIELDS.get(resource, resource))}"
    )


def _of(nodes: Sequence[str], count: int) -> str:
    """`2 of 8 nodes (n1, n2)`."""
    shown = ", ".join(sorted(nodes)[:_MAX_NAMES])
    more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
    return f"{len(nodes)} of {count} node{'s' if count > 1 else ''} ({shown}{more})"


def _offers(resource: str) -> str:
    """Return the command that lists how much of a resource each node offers."""
    field = resource.replace(".", r"\.")
    return (
        "kubectl get nodes -o custom-columns="
        f"'NODE:.metadata.name,OFFERS:.status.allocatable.{field}'"
    )
