"""Weigh evidence against nodes: suspect nodes are used last, quarantined nodes take no new pods.

Reports of a job's agents come from a tenant, which is the job's namespace. All jobs of a namespace
together count as one witness, for at most eight nodes of a pool. A check by the platform counts as
two witnesses.

    score = sum over witnesses of weight x 0.5 ** (age / 12 h)      weight 1, of a check 2

A node is quarantined from a score of 1.5 on and released at 1. So one tenant alone cannot start a
quarantine, and two tenants that agree quarantine a node for twelve hours. If one of them continues
to report the node, the quarantine ends when the other's last report is dropped after 24 hours. A
check that passes clears a node at once. At most a fifth of a pool (`PoolRules.quarantine_percent`),
rounded down, is quarantined: the nodes with the highest scores.

Example: a job of team-a finds n1 slow at 0 h, and one of team-b at 6 h. The score is 0.71 + 1 at
6 h: quarantined. At 15 h it is 0.41 + 0.59: released. If jobs of team-a keep finding it slow, the
score is 1 + 0.25 just before 30 h, and 1 from then on: released.

Times are rounded down to whole hours. So evidence that comes every second changes a score only once
an hour, and the order in which it comes does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Final

HOUR_SECONDS: Final = 3600.0
HALF_LIFE_SECONDS: Final = 12 * HOUR_SECONDS
FORGOTTEN_SECONDS: Final = 2 * HALF_LIFE_SECONDS
"""Age at which evidence is dropped."""
QUARANTINE_FROM: Final = 1.5
RELEASED_AT: Final = 1.0
"""Highest score that one tenant alone can keep up."""
SUSPECT_FROM: Final = 0.5
CHECK_WEIGHT: Final = 2.0
MAX_NODES: Final = 64
"""Number of nodes of a pool that are remembered: those with the highest scores."""
MAX_NODES_OF_WITNESS: Final = 8
"""Number of nodes of a pool for which a tenant counts: those it reported last."""
MAX_EVIDENCE: Final = 8
"""Pieces of evidence that are kept for a node."""
MAX_QUARANTINE_PERCENT: Final = 20


class EvidenceKind(StrEnum):
    """Kinds of evidence against a node."""

    SLOW = "Slow"
    """Ranks of a job computed more slowly there than on its other nodes."""
    DEVICE_FAILED = "DeviceFailed"
    """A GPU failed there under a job."""
    CHECK_FAILED = "CheckFailed"
    """A check of the platform found it slow or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One piece of evidence against a node."""

    node: str
    kind: EvidenceKind
    at: float
    """Seconds since the epoch."""
    by: str = ""
    """Namespace of the job that reports it. '' for a check of the platform."""
    detail: str = ""
    """A few words with figures."""

    @property
    def weight(self) -> float:
        """Weight while it is new. Evidence of a tenant weighs at most 1."""
        return 1.0 if self.by else CHECK_WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """The evidence against one node, and its quarantine."""

    evidence: tuple[Evidence, ...]
    """The newest evidence of each kind and witness."""
    quarantined_at: float | None = None
    """Start of its quarantine. None: it takes new pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The nodes of a pool, and the rules of its owner for quarantine."""

    nodes: Collection[str]
    quarantine_percent: int = MAX_QUARANTINE_PERCENT
    trusted: Collection[str] = ()
    """Nodes that are never quarantined."""

    @property
    def most_quarantined(self) -> int:
        """Largest number of nodes that may be quarantined. 0 in a small pool."""
        return len(self.nodes) * min(self.quarantine_percent, MAX_QUARANTINE_PERCENT) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """A node's health as the scheduler uses it."""

    quarantined: bool = False
    suspicion: int = 0
    """0 to 2. Among otherwise equal nodes, those with less are used first."""


TRUSTED: Final = NodeStanding()
"""Standing of a node without evidence against it."""

HealthByNode = Mapping[str, NodeHealth]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Evidence and checks since the last call."""

    evidence: Collection[Evidence] = ()
    passed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Time of the last passed check, by node."""


def judged(before: HealthByNode, news: News, *, rules: PoolRules, now: float) -> HealthByNode:
    """Return the health of a pool's nodes after these news; nodes without evidence are left out.

    Args:
        before: result of the last call.
        news: evidence and checks since then; older news change nothing.
        rules: rules of the pool.
        now: seconds since the epoch.
    """
    known = [each for health in before.values() for each in health.evidence]
    # 1. Drop old evidence, evidence about other nodes, and evidence from before a passed check.
    kept = (
        each
        for each in (*known, *news.evidence)
        if each.node in rules.nodes and now - each.at < FORGOTTEN_SECONDS
        if each.at > news.passed.get(each.node, -inf)
    )
    # 2. Keep bounded evidence for each witness and node, and the nodes with the highest scores.
    by_node: dict[str, list[Evidence]] = defaultdict(list)
    for each in _within_witness_limits(_newest(kept, passed=news.passed, now=now)):
        by_node[each.node].append(each)
    evidence = {node: _strongest(every) for node, every in by_node.items()}
    worst = sorted(evidence, key=lambda node: (-_rounded(evidence[node], now), node))[:MAX_NODES]
    # 3. Quarantine the worst nodes, up to the limit. A node that is in quarantine stays longer.
    since = {node: before[node].quarantined_at if node in before else None for node in worst}
    quarantined = [
        node
        for node in worst
        if node not in rules.trusted
        and _is_quarantined(score(evidence[node], now=now), quarantined=since[node] is not None)
    ]
    taken_out = set(quarantined[: rules.most_quarantined])
    return {
        node: NodeHealth(
            evidence=evidence[node],
            quarantined_at=(since[node] or now) if node in taken_out else None,
        )
        for node in sorted(worst)
    }


def score(evidence: Iterable[Evidence], *, now: float) -> float:
    """Return the score of a node. Each witness counts once, with its strongest evidence."""
    # A witness that reports a node twice says the same thing twice, so only its strongest evidence
    # counts. The sum is sorted, so that floats add up in one order.
    by_witness: dict[str, float] = {}
    for each in evidence:
        age = max(0.0, now - each.at)
        weight = each.weight * 0.5 ** (age / HALF_LIFE_SECONDS)
        by_witness[each.by] = max(weight, by_witness.get(each.by, 0.0))
    return sum(sorted(by_witness.values()))


def standing(health: NodeHealth, *, now: float) -> NodeStanding:
    """Return a node's health as the scheduler uses it."""
    height = score(health.evidence, now=now)
    return NodeStanding(
        quarantined=health.quarantined_at is not None,
        suspicion=(height >= SUSPECT_FROM) + (height >= QUARANTINE_FROM),
    )


def sentence(health: NodeHealth) -> str:
    """Return the evidence against a node as text.

    Example: "Slow (by 20 %) for jobs in team-a; CheckFailed (matmul 61 % of the median)".
    """
    return "; ".join(
        f"{each.kind}{f' ({each.detail})' if each.detail else ''}"
        f"{f' for jobs in {each.by}' if each.by else ''}"
        for each in health.evidence
    )


def _is_quarantined(height: float, *, quarantined: bool) -> bool:
    return height >= QUARANTINE_FROM or (quarantined and height > RELEASED_AT)


def _newest(
    evidence: Iterable[Evidence], *, passed: Mapping[str, float], now: float
) -> Iterable[Evidence]:
    """Return the newest evidence by node, kind and witness, none of it later than `now`.

    Evidence from after a check, but within its hour, counts as just after the check. So it also
    counts at the next call.
    """
    newest: dict[tuple[str, str, str], Evidence] = {}
    for each in evidence:
        # Whole hours limit how often scores change. Evidence never dates from the future,
        # whatever the clock of its reporter.
        at = max(_whole_hours(min(each.at, now)), passed.get(each.node, -inf) + 1)
        key = (each.node, each.kind, each.by)
        known = newest.get(key)
        if known is None or (known.at, known.detail) < (at, each.detail):
            newest[key] = replace(each, at=at)
    return newest.values()


def _within_witness_limits(evidence: Iterable[Evidence]) -> Iterable[Evidence]:
    """Yield the evidence of each tenant for the nodes it reported last. Checks have no limit."""
    by_witness: dict[str, dict[str, list[Evidence]]] = defaultdict(lambda: defaultdict(list))
    for each in evidence:
        by_witness[each.by][each.node].append(each)
    for witness, nodes in by_witness.items():
        # The nodes reported last count, so that one namespace cannot fill a pool with evidence.
        order = sorted(nodes, key=lambda node, nodes=nodes: (-_last(nodes[node]), node))
        for node in order[:MAX_NODES_OF_WITNESS] if witness else order:
            yield from nodes[node]


def _strongest(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the evidence of a node that counts most, in a fixed order."""
    order = sorted(evidence, key=lambda each: (-each.weight, -each.at, each.kind, each.by))
    return tuple(order[:MAX_EVIDENCE])


def _rounded(evidence: Iterable[Evidence], now: float) -> float:
    """Return a rounded score for sorting. Rounding hides differences in the last bits."""
    return round(score(evidence, now=now), 6)


def _last(evidence: Sequence[Evidence]) -> float:
    return max(each.at for each in evidence)


def _whole_hours(at: float) -> float:
    return at // HOUR_SECONDS * HOUR_SECONDS
