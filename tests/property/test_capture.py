"""Whatever a cycle may be told and decide comes back from paper to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_scheduler.capture import Capture, decode, encode
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import (
    Admitted,
    Budget,
    Gang,
    Node,
    Policy,
    Pool,
    Queue,
    Role,
    Snapshot,
)
from drumline_scheduler.resources import Resources

PROPERTY = settings(max_examples=40, derandomize=True, deadline=None)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(-(2**53), 2**53)
AMOUNTS = st.integers(0, 2**53)


def mappings(wanted: type) -> st.SearchStrategy[object]:
    key, value = get_args(wanted)
    return st.dictionaries(st.from_type(key), st.from_type(value), max_size=2)


# for the whole run of pytest; no other test draws these by their type
st.register_type_strategy(float, FINITE)
st.register_type_strategy(int, NUMBERS)
st.register_type_strategy(Mapping, mappings)

per_pod = st.builds(
    Resources,
    gpus=AMOUNTS,
    cpu_millis=AMOUNTS,
    memory_bytes=AMOUNTS,
    pods=st.just(1),
    ephemeral_bytes=AMOUNTS,
    extended=st.lists(st.tuples(st.text(), AMOUNTS), max_size=3).map(tuple),
)
roles = st.lists(
    st.builds(Role, name=st.text(), pods=st.integers(1, 3), per_pod=per_pod), max_size=2
)


@st.composite
def gangs(draw: st.DrawFn) -> Gang:
    """A gang with every field drawn that does not constrain another."""
    drawn = draw(
        st.builds(
            Gang,
            nodes=st.just(1),
            per_pod=per_pod,
            roles=roles.map(tuple),
            sizes=st.just(()),
            slices=st.just(()),
            pool=st.just(None),
        )
    )
    sizes = draw(st.sets(st.integers(1, 5), max_size=3).map(sorted))
    return replace(drawn, nodes=sizes[-1] if sizes else 1, sizes=tuple(sizes))


@st.composite
def held(draw: st.DrawFn) -> Admitted:
    gang = draw(gangs())
    places = gang.extras + draw(st.sampled_from(gang.legal_sizes))
    names = draw(st.lists(st.text(), min_size=places, max_size=places))
    return draw(
        st.builds(
            Admitted,
            gang=st.just(gang),
            assignment=st.just(tuple(names)),
            nominated=st.dictionaries(st.integers(0, 9), st.text(), max_size=2),
        )
    )


def named(values: st.SearchStrategy[object], by: str) -> st.SearchStrategy[object]:
    return st.lists(values, max_size=3, unique_by=lambda item: getattr(item, by)).map(tuple)


budgets = st.builds(Budget, gpu_hours=st.integers(1, 2**40), window_days=st.integers(1, 92))
queues = st.builds(Queue, weight=st.floats(0.1, 1e6), budget=st.none() | budgets)
snapshots = st.builds(
    Snapshot,
    nodes=named(st.builds(Node), "name"),
    pools=named(st.builds(Pool), "name"),
    queues=named(queues, "name"),
    admitted=st.lists(held(), max_size=2, unique_by=lambda each_held: each_held.gang.uid).map(
        tuple
    ),
    history=st.dictionaries(st.text(), FINITE, max_size=2),
    spent=st.dictionaries(
        st.text(), st.dictionaries(st.integers(-9, 99_999), st.integers(0, 2**50)), max_size=2
    ),
)
captures = st.builds(
    Capture,
    snapshot=snapshots,
    pending=st.lists(gangs(), max_size=3).map(tuple),
    policy=st.builds(Policy),
    now=FINITE,
    decisions=st.builds(Decisions),
)


@PROPERTY
@given(captures)
def test_what_is_written_is_what_is_read(capture: Capture) -> None:
    document = encode(capture)
    again = decode(document)
    assert again == capture
    assert encode(again) == document
