"""Convert the output of a check to the failed nodes and the pool's new entries. Pure.

The trainer writes the line (`drumline_trainer.node_check.verdicts`). It comes from a pod, so it is
parsed as untrusted input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline_cli.columns import columns
from drumline_cli.errors import NotAnswered
from drumline_contract import plain

Json = dict[str, Any]

_MARK: Final = '{"nodeCheck":1,'
_MOST_CHECKED: Final = 64
_MAX_CHARS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of the check of one node."""

    node: str
    failed: str
    """Failure, or empty if the node passed."""
    figures: tuple[float, ...]
    """Tflop/s of products, GB/s of memory, GB/s with each partner."""


def results_in(lines: Iterable[str], *, nodes: Sequence[str]) -> tuple[CheckResult, ...]:
    """Return the results in the last line of a log that has some.

    Args:
        lines: lines of the first pod.
        nodes: nodes of the pods, by index.

    Raises:
        NotAnswered: there is no such line, or it is not what it should be, or there are several:
            a pod that only looks like one of the job's may have written one.
    """
    printed = [line[line.index(_MARK) :] for line in lines if _MARK in line]
    if not printed:
        raise NotAnswered("the job printed no result; see its log")
    if len(printed) > 1:
        raise NotAnswered(
            f"{len(printed)} results instead of one: cannot determine the job's result"
        )
    try:
        members = cast("list[Json]", json.loads(printed[0])["members"])
        return tuple(
            CheckResult(
                node=nodes[int(member["index"])],
                failed=plain(str(member["failed"]))[:_MAX_CHARS],
                figures=(
                    float(member["matmul_tflops"]),
                    float(member["memory_gbps"]),
                    *map(float, member["pair_gbps"]),
                ),
            )
            for member in members
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NotAnswered(f"the job's result cannot be read: {error!r}") from None


def node_health(
    before: Mapping[str, Any], results: Sequence[CheckResult], *, suspects: Iterable[str], at: str
) -> Json:
    """`spec.nodeHealth` of the pool after a check.

    Nodes that passed are named only where something speaks against them; what is known of nodes
    that were not checked stays.

    Args:
        before: the field as it is.
        results: results of this check.
        suspects: nodes that something speaks against.
        at: when the check ended.
    """
    known = {entry["node"]: entry for entry in before.get("checked") or ()}
    wanted = {*suspects, *known}
    for result in results:
        known.pop(result.node, None)
        if result.failed:
            known[result.node] = {"node": result.node, "at": at, "failed": result.failed}
        elif result.node in wanted:
            known[result.node] = {"node": result.node, "at": at}
    newest = sorted(known.values(), key=lambda entry: (entry["at"], entry["node"]))
    return {**before, "checked": newest[-_MOST_CHECKED:]}


def table(results: Sequence[CheckResult]) -> str:
    """Return one line per node."""
    heads = ("NODE", "TFLOPS", "MEMORY GB/S", "NETWORK GB/S", "RESULT")
    cells = [
        (
            result.node,
            f"{result.figures[0]:.4g}",
            f"{result.figures[1]:.4g}",
            ", ".join(f"{rate:.4g}" for rate in result.figures[2:]) or "-",
            result.failed or "passed",
        )
        for result in results
    ]
    return "\n".join(columns([heads, *cells], left=(0, 3, 4))) + "\n"
