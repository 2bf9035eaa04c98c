"""Which connections are kept, by rule and by chance."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_contract.connection_limits import AdmittedConnection, ConnectionLimits, Refused


@pytest.fixture
def limits() -> ConnectionLimits[int]:
    return ConnectionLimits[int](total=8, reserve=2, of_address=4)


def test_the_example_of_the_module(limits: ConnectionLimits[int]) -> None:
    for connection, address in enumerate("AAAABBCO"):
        assert limits.admit(connection, address=address) == AdmittedConnection()
    limits.has_request(7)
    assert limits.admit(8, address="A") == Refused()
    assert limits.admit(9, address="kubelet") == AdmittedConnection(displaced=0)
    assert limits.admit(10, address="B") == AdmittedConnection(displaced=1)


def test_a_closed_connection_makes_room(limits: ConnectionLimits[int]) -> None:
    for connection in range(4):
        limits.admit(connection, address="A")
    limits.remove(2)
    limits.remove(2)
    assert limits.admit(4, address="A") == AdmittedConnection()
    assert limits.admit(5, address="A") == Refused()


def test_a_request_under_way_is_never_displaced(limits: ConnectionLimits[int]) -> None:
    for connection, address in enumerate("AAAABBBB"):
        limits.admit(connection, address=address)
        limits.has_request(connection)
    assert limits.admit(8, address="C") == AdmittedConnection(crowded=True)
    assert limits.admit(9, address="D") == AdmittedConnection(displaced=8)


def test_beyond_the_reserve_a_crowd_is_refused(limits: ConnectionLimits[int]) -> None:
    for connection, address in enumerate("AAAABBBBCD"):
        limits.admit(connection, address=address)
        limits.has_request(connection)
    assert limits.admit(10, address="E") == Refused()
    assert len(limits) == 10


STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "come", "come", "ask", "go"]), st.integers(0, 5)),
    max_size=120,
)


@given(STEPS)
def test_the_bounds_hold_whatever_comes(steps: list[tuple[str, int]]) -> None:
    limits = ConnectionLimits[int](total=8, reserve=2, of_address=4)
    kept: dict[int, str] = {}
    asked: set[int] = set()
    for number, (step, choice) in enumerate(steps):
        if step == "come":
            verdict = limits.admit(number, address=f"a{choice}")
            if isinstance(verdict, Refused):
                continue
            if verdict.displaced is not None:
                assert verdict.displaced not in asked
                largest = Counter(kept[each] for each in kept if each not in asked)
                assert largest[kept[verdict.displaced]] == max(largest.values())
                del kept[verdict.displaced]
            kept[number] = f"a{choice}"
        elif kept:
            connection = list(kept)[choice % len(kept)]
            if step == "ask":
                limits.has_request(connection)
                asked.add(connection)
            else:
                limits.remove(connection)
                del kept[connection]
        assert len(limits) == len(kept) <= 10
        assert max(Counter(kept.values()).values(), default=0) <= 4


@given(st.integers(1, 200), st.integers(1, 7))
def test_few_connections_of_an_address_outlive_any_crowd_of_another(crowd: int, few: int) -> None:
    limits = ConnectionLimits[int](total=16, reserve=2, of_address=12)
    for number in range(crowd):
        limits.admit(number, address="crowd")
    for number in range(few):
        verdict = limits.admit(1000 + number, address="member")
        assert isinstance(verdict, AdmittedConnection)
        assert not verdict.crowded
        limits.admit(2000 + number, address="crowd")
    displaced = [
        verdict.displaced
        for number in range(crowd)
        if isinstance(verdict := limits.admit(3000 + number, address="crowd"), AdmittedConnection)
    ]
    assert not any(each is not None and 1000 <= each < 2000 for each in displaced)
