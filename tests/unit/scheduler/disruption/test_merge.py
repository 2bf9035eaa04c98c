"""Several announcements, one disruption."""

from __future__ import annotations

from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.merge import keep_earliest_deadlines, merged
from drumline_scheduler.disruption.model import Confidence, Disruption, NodeFacts, TaintFact
from drumline_scheduler.disruption.signals import announced_disruptions

NOW = 1_800_000_000.0


def announced(
    kind: DisruptionKind,
    *,
    deadline: float | None = None,
    source: str = "a",
    confidence: Confidence = Confidence.CERTAIN,
) -> Disruption:
    return Disruption(node="n", kind=kind, source=source, deadline=deadline, confidence=confidence)


def test_nothing_announced_is_no_disruption() -> None:
    assert merged([]) is None


def test_a_reclaim_with_its_cordon_is_a_single_reclaim() -> None:
    reclaim = announced(DisruptionKind.SPOT_RECLAIM, deadline=NOW + 120, source="taint")
    cordon = announced(DisruptionKind.DRAIN, source="cordon")
    assert merged([cordon, reclaim]) == reclaim == merged([reclaim, cordon])


def test_the_earliest_deadline_counts_whoever_states_it() -> None:
    reclaim = announced(DisruptionKind.SPOT_RECLAIM, deadline=NOW + 120)
    shutdown = announced(DisruptionKind.MAINTENANCE, deadline=NOW + 15, source="b")
    assert merged([reclaim, shutdown]) == announced(DisruptionKind.SPOT_RECLAIM, deadline=NOW + 15)


def test_a_mere_possibility_sets_no_deadline_for_a_certainty() -> None:
    drain = announced(DisruptionKind.DRAIN)
    freeze = announced(
        DisruptionKind.MAINTENANCE, deadline=NOW + 900, confidence=Confidence.POSSIBLE
    )
    assert merged([drain, freeze]) == drain


def test_a_deadline_counted_from_the_time_of_looking_does_not_move_with_it() -> None:
    taint = TaintFact(key="aws-node-termination-handler/spot-itn", effect="NoSchedule")
    node = NodeFacts(name="n", taints=(taint,))
    first = keep_earliest_deadlines({}, announced_disruptions(node, now=NOW))
    later = keep_earliest_deadlines(first, announced_disruptions(node, now=NOW + 60))
    assert [disruption.deadline for disruption in later.values()] == [NOW + 120]


def test_what_is_announced_no_more_is_forgotten() -> None:
    before = keep_earliest_deadlines({}, [announced(DisruptionKind.DRAIN)])
    assert keep_earliest_deadlines(before, []) == {}
