"""Evidence against nodes -> which are taken last, and which take no new pods for a while.

The first are suspect, the second quarantined.

What a job's agents say is a tenant's word, and the tenant is the namespace: all its jobs together
count as one witness, of at most eight nodes of a pool. A check of the platform's own counts as two.

    score = sum over witnesses of weight x 0.5 ** (age / 12 h)      weight 1, of a check 2

A node is quarantined from a score of 1.5 on and released at 1: so one tenant alone cannot begin a
quarantine, and two that agree cost a node twelve hours. Where one of them goes on to say so, it
lasts until the other's last word is dropped, 24 hours after it. A check that passes clears a node
at once. At most a fifth of a pool (`PoolRules.quarantine_percent`), rounded down, is
quarantined: the nodes with the highest scores.

Example: a job of team-a finds n1 slow at 0 h, one of team-b at 6 h. The score is 0.71 + 1 at 6 h:
quarantined, and 0.41 + 0.59 at 15 h: released. If jobs of team-a go on to find it slow, the score
is 1 + 0.25 just before 30 h, and 1 from then on: released.

Times are counted in whole hours, so evidence that comes every second changes nothing but once an
hour, and the order in which it comes decides nothing.
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
"""Evidence of that age is dropped."""
QUARANTINE_FROM: Final = 1.5
RELEASED_AT: Final = 1.0
"""What one tenant alone can bring about for ever."""
SUSPECT_FROM: Final = 0.5
CHECK_WEIGHT: Final = 2.0
MAX_NODES: Final = 64
"""Of a pool that are remembered: those with the highest scores."""
MAX_NODES_OF_WITNESS: Final = 8
"""Of a pool: the ones that a tenant spoke of last."""
MAX_EVIDENCE: Final = 8
"""Of a node."""
MAX_QUARANTINE_PERCENT: Final = 20


class EvidenceKind(StrEnum):
    """What speaks against a node."""

    SLOW = "Slow"
    """Ranks of a job computed more slowly there than on its other nodes."""
    DEVICE_FAILED = "DeviceFailed"
    """A GPU failed there under a job."""
    CHECK_FAILED = "CheckFailed"
    """A check of the platform found it slow or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Something that speaks against a node."""

    node: str
    kind: EvidenceKind
    at: float
    """Seconds since the epoch."""
    by: str = ""
    """The namespace whose job says so; '' of a check."""
    detail: str = ""
    """With figures, a few words."""

    @property
    def weight(self) -> float:
        """What it counts while it is new: a tenant's word never more than 1."""
        return 1.0 if self.by else CHECK_WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What is known against one node."""

    evidence: tuple[Evidence, ...]
    """The newest of each kind and witness."""
    quarantined_at: float | None = None
    """Since when it takes no new pods; None: it takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The nodes that are judged, and what their owner says of it."""

    nodes: Collection[str]
    quarantine_percent: int = MAX_QUARANTINE_PERCENT
    trusted: Collection[str] = ()
    """Nodes that are never quarantined."""

    @property
    def most_quarantined(self) -> int:
        """How many nodes may be quarantined; of a pool that is too small for that none."""
        return len(self.nodes) * min(self.quarantine_percent, MAX_QUARANTINE_PERCENT) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """What the scheduler makes of a node's health."""

    quarantined: bool = False
    suspicion: int = 0
    """0 to 2: among nodes that are equal otherwise those with less are taken first."""


TRUSTED: Final = NodeStanding()
"""Of a node that nothing speaks against."""

HealthByNode = Mapping[str, NodeHealth]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was learned since the last look."""

    evidence: Collection[Evidence] = ()
    passed: Mapping[str, float] = field(default_factory=dict[str, float])
    """By node: when it last passed a check."""


def judged(before: HealthByNode, news: News, *, rules: PoolRules, now: float) -> HealthByNode:
    """The health of a pool's nodes after these news, by node; a node without evidence is left out.

    Args:
        before: what this returned at the last look.
        news: what was learned since; what is old news changes nothing.
        rules: of the pool.
        now: seconds since the epoch.
    """
    known = [each for health in before.values() for each in health.evidence]
    kept = (
        each
        for each in (*known, *news.evidence)
        if each.node in rules.nodes and now - each.at < FORGOTTEN_SECONDS
        if each.at > news.passed.get(each.node, -inf)
    )
    by_node: dict[str, list[Evidence]] = defaultdict(list)
    for each in _within_witness_limits(_newest(kept, passed=news.passed, now=now)):
        by_node[each.node].append(each)
    evidence = {node: _heaviest(every) for node, every in by_node.items()}
    worst = sorted(evidence, key=lambda node: (-_rounded(evidence[node], now), node))[:MAX_NODES]
    since = {node: before[node].quarantined_at if node in before else None for node in worst}
    quarantined = [
        node
        for node in worst
        if node not in rules.trusted
        and _is_out(score(evidence[node], now=now), quarantined=since[node] is not None)
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
    """How much speaks against a node: each witness counts once, with the newest it says."""
    by_witness: dict[str, float] = {}
    for each in evidence:
        age = max(0.0, now - each.at)
        weight = each.weight * 0.5 ** (age / HALF_LIFE_SECONDS)
        by_witness[each.by] = max(weight, by_witness.get(each.by, 0.0))
    return sum(sorted(by_witness.values()))


def standing(health: NodeHealth, *, now: float) -> NodeStanding:
    """What the scheduler makes of it."""
    height = score(health.evidence, now=now)
    return NodeStanding(
        quarantined=health.quarantined_at is not None,
        suspicion=(height >= SUSPECT_FROM) + (height >= QUARANTINE_FROM),
    )


def sentence(health: NodeHealth) -> str:
    """What speaks against a node, in words.

    Example: "Slow (by 20 %) for jobs in team-a; CheckFailed (matmul 61 % of the median)".
    """
    return "; ".join(
        f"{each.kind}{f' ({each.detail})' if each.detail else ''}"
        f"{f' for jobs in {each.by}' if each.by else ''}"
        for each in health.evidence
    )


def _is_out(height: float, *, quarantined: bool) -> bool:
    return height >= QUARANTINE_FROM or (quarantined and height > RELEASED_AT)


def _newest(
    evidence: Iterable[Evidence], *, passed: Mapping[str, float], now: float
) -> Iterable[Evidence]:
    """The newest by node, kind and witness; nothing is later than now.

    What came after a check within its hour is kept as just after it: at the next look it still did.
    """
    newest: dict[tuple[str, str, str], Evidence] = {}
    for each in evidence:
        at = max(_whole_hours(min(each.at, now)), passed.get(each.node, -inf) + 1)
        key = (each.node, each.kind, each.by)
        known = newest.get(key)
        if known is None or (known.at, known.detail) < (at, each.detail):
            newest[key] = replace(each, at=at)
    return newest.values()


def _within_witness_limits(evidence: Iterable[Evidence]) -> Iterable[Evidence]:
    """What each tenant says of the nodes it spoke of last; checks have no limit."""
    by_witness: dict[str, dict[str, list[Evidence]]] = defaultdict(lambda: defaultdict(list))
    for each in evidence:
        by_witness[each.by][each.node].append(each)
    for witness, nodes in by_witness.items():
        order = sorted(nodes, key=lambda node, nodes=nodes: (-_last(nodes[node]), node))
        for node in order[:MAX_NODES_OF_WITNESS] if witness else order:
            yield from nodes[node]


def _heaviest(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """What counts most of a node, in one order."""
    order = sorted(evidence, key=lambda each: (-each.weight, -each.at, each.kind, each.by))
    return tuple(order[:MAX_EVIDENCE])


def _rounded(evidence: Iterable[Evidence], now: float) -> float:
    """A score to sort by: floats that differ in their last bits are equal."""
    return round(score(evidence, now=now), 6)


def _last(evidence: Sequence[Evidence]) -> float:
    return max(each.at for each in evidence)


def _whole_hours(at: float) -> float:
    return at // HOUR_SECONDS * HOUR_SECONDS
