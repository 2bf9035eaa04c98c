from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_agent.api.departures import Departure, Departures
from drumline_contract import ContractError


def departure(index: int, code: int, *, generation: int = 1) -> Departure:
    return Departure(index=index, generation=generation, attempt=0, exit_code=code)


@given(
    st.builds(
        Departure,
        index=st.integers(0),
        generation=st.integers(1),
        attempt=st.integers(0),
        exit_code=st.integers(0, 255),
    )
)
def test_what_is_encoded_is_read(whole: Departure) -> None:
    assert Departure.parse(whole.encode()) == whole


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"\xff", b'{"index":true,"generation":1,"attempt":0,"exit_code":0}']
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ContractError):
        Departure.parse(body)


async def test_a_departure_from_this_membership_wakes_whoever_waits() -> None:
    departures = Departures()
    waiting = asyncio.create_task(departures.wait_for_exit_code(1, (2, 0)))
    for heard in (departure(1, 1, generation=1), departure(3, 137, generation=2)):
        departures.record(heard)
        await asyncio.sleep(0)
        assert not waiting.done()
    departures.record(departure(1, 75, generation=2))

    assert await waiting == 75
