"""A cycle that is written down is the same cycle when it is read."""

from __future__ import annotations

import json

import pytest

from drumline_scheduler import (
    Admitted,
    Blocked,
    BlockReason,
    Decisions,
    Gang,
    MoveBudget,
    NodeOperator,
    NodeRequirement,
    Ordering,
    Placed,
    Policy,
    Preemption,
    Queue,
    Remedy,
    RemedyKind,
    Resources,
    Role,
    Slice,
    Snapshot,
    Victim,
    VictimReason,
    WaitingRule,
)
from drumline_scheduler.capture import Capture, CaptureError, decode, encode
from drumline_scheduler.model import Pool
from tests.unit.scheduler.builders import node

WORKER = Resources(gpus=8, pods=1, extended=(("rdma/hca", 2),))
FANCY = Gang(
    key="team/fancy",
    uid="1",
    queue="research",
    nodes=8,
    per_pod=WORKER,
    queued_at=0.1 + 0.2,
    pools=("b", "a"),
    slices=(Slice(level="rack", pods=4), Slice(level="host", pods=2, required=False)),
    roles=(Role(name="launcher", pods=1, per_pod=Resources(pods=1)),),
    selector={"zone": "a", "arch": "arm64"},
    affinity=((NodeRequirement(key="gpu", operator=NodeOperator.IN, values=("h100",)),),),
    excluded_nodes=frozenset({"n3", "n1", "n2"}),
    max_runtime_seconds=1e9 / 3,
)
HELD = Admitted(
    gang=Gang(key="team/held", uid="2", queue="research", nodes=2, per_pod=WORKER, queued_at=1.0),
    pool="a",
    assignment=("n0", "n1"),
    reserved=frozenset({1}),
    lost=frozenset({0}),
    gpu_seconds_at_risk=12.5,
)


def a_capture() -> Capture:
    return Capture(
        snapshot=Snapshot(
            nodes=(node("n0", "r0"), node("n1", "r0")),
            pools=(Pool(name="h100", levels=("rack",)),),
            queues=(Queue(name="research", nominal={"h100": 8}, namespaces=frozenset({"b", "a"})),),
            admitted=(HELD,),
            history={"research": 0.1},
        ),
        pending=(FANCY,),
        policy=Policy(
            waiting=WaitingRule.BACKFILL,
            order=Ordering.FAIR_SHARE,
            moves=MoveBudget(gangs=2),
        ),
        now=1_700_000_000.123456,
        decisions=Decisions(
            placed=(Placed(key="a/b", uid="3", pool="h100", assignment=("n0",), domain=("r0",)),),
            blocked=(
                Blocked(
                    key="a/c",
                    uid="4",
                    reason=BlockReason.QUOTA_EXHAUSTED,
                    message="no",
                    remedy=Remedy(kind=RemedyKind.RAISE_QUOTA, amount=8, where="research"),
                ),
            ),
            preemptions=(
                Preemption(
                    key="a/d",
                    uid="5",
                    pool="h100",
                    assignment=("n1",),
                    victims=(
                        Victim(
                            key="a/e",
                            uid="6",
                            gpus=8,
                            gpu_seconds_lost=1 / 3,
                            why=VictimReason.BORROWED,
                        ),
                    ),
                ),
            ),
            retry_at=2.5,
        ),
        program="0.1.0",
    )


def test_every_field_comes_back_and_the_bytes_are_the_same_again() -> None:
    document = encode(a_capture())
    assert decode(document) == a_capture()
    assert encode(decode(document)) == document


def test_the_order_in_sets_and_mappings_leaves_no_trace() -> None:
    selector = dict(reversed(FANCY.selector.items()))
    excluded = frozenset(sorted(FANCY.excluded_nodes))
    turned = {**_fields(FANCY), "selector": selector, "excluded_nodes": excluded}
    again = Capture(**{**_fields(a_capture()), "pending": (Gang(**turned),)})
    assert encode(again) == encode(a_capture())


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in type(value).__slots__}  # type: ignore[attr-defined]


def test_a_field_that_came_later_has_its_default() -> None:
    document = json.loads(encode(a_capture()))
    del document["capture"]["snapshot"]["history"]
    del document["capture"]["pending"][0]["user"]
    read = decode(json.dumps(document).encode())
    assert (read.snapshot.history, read.pending[0].user) == ({}, "")


def bent(path: str, value: object) -> bytes:
    document = json.loads(encode(a_capture()))
    *way, last = path.split(".")
    place = document
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "kind: '' is not SchedulingCapture"),
        (bent("kind", "List"), "kind: 'List' is not SchedulingCapture"),
        (bent("version", 2), "version: 2 is unknown, want 1"),
        (bent("capture.now", "soon"), "capture.now: Expected `float`, got `str`"),
        (bent("capture.pending.0.nodes", 0), "capture.pending[0]: team/fancy: nodes must be at"),
        (bent("capture.policy.waiting", "Maybe"), "capture.policy.waiting: Invalid enum value"),
        (
            bent("capture.snapshot.nodes.0.allocatable.gpus", 1.5),
            "capture.snapshot.nodes[0].allocatable.gpus: Expected `int`, got `float`",
        ),
    ],
)
def test_what_is_no_capture_says_where_it_goes_wrong(document: bytes, said: str) -> None:
    with pytest.raises(CaptureError) as caught:
        decode(document)
    assert said in str(caught.value)


def test_what_is_not_json_says_at_which_byte() -> None:
    document = encode(a_capture())
    with pytest.raises(CaptureError) as caught:
        decode(document.replace(b'"now":', b'"now"!', 1))
    assert caught.value.byte == document.index(b'"now":') + len(b'"now"')
