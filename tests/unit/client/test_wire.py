from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_client import wire
from drumline_client.wire import (
    MAX_LINE_BYTES,
    Hello,
    PartSaved,
    StepReport,
    Welcome,
    WireError,
    decode_agent_message,
    decode_client_message,
    encode,
)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-wire.MAX_NUMBER, wire.MAX_NUMBER),
    "float": st.floats(allow_nan=False, allow_infinity=False, max_value=2**53, min_value=-(2**53)),
    "bool": st.booleans(),
    "str": st.text(max_size=100),
}


def messages(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(kind, **{f.name: VALUES[str(f.type).split(" | ")[0]] for f in fields(kind)})
        for kind in union.__args__
    )


@given(messages(wire.ClientMessage))
def test_a_rank_s_message_is_read_as_it_was_sent(message: wire.ClientMessage) -> None:
    assert decode_client_message(encode(message)) == message


@given(messages(wire.AgentMessage))
def test_an_agent_s_message_is_read_as_it_was_sent(message: wire.AgentMessage) -> None:
    assert decode_agent_message(encode(message)) == message


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(
        lambda value: json.dumps({"t": "hello", "v": value, "pid": value, "rank": value}).encode()
    )
)
def test_anything_else_is_a_wire_error(line: bytes) -> None:
    try:
        message = decode_client_message(line)
    except WireError:
        return
    assert message is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", True),
        ("rank", 1.5),
        ("rank", "1"),
        ("rank", 2**60),
        ("client", "x" * (wire.MAX_TEXT + 1)),
        ("pid", None),
    ],
)
def test_a_field_of_a_wrong_type_or_size_is_named(field: str, value: object) -> None:
    whole = json.loads(encode(Hello(v=1, pid=1, rank=0, local_rank=0, world_size=1)))
    with pytest.raises(WireError, match=field):
        decode_client_message(json.dumps({**whole, field: value}).encode())


def test_a_line_is_measured_before_it_is_parsed() -> None:
    deep = b"[" * MAX_LINE_BYTES + b"\n"
    with pytest.raises(WireError, match="more than 4096 bytes"):
        decode_client_message(deep)
    with pytest.raises(WireError):
        decode_client_message(deep[:3000])


def test_an_unknown_message_and_an_unknown_field_are_of_a_newer_end() -> None:
    assert decode_agent_message(b'{"t":"snapshot","step":1}') is None
    assert decode_agent_message(b'{"t":"welcome","v":1,"mood":"good"}') == Welcome(v=1)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_left_out(loss: float) -> None:
    report = StepReport(at=1.0, phase="training", saves=False, loss=loss)
    assert decode_client_message(encode(report)) == StepReport(
        at=1.0, phase="training", saves=False
    )


def test_a_long_text_is_cut_and_one_too_long_for_a_line_refused() -> None:
    cut = decode_client_message(encode(PartSaved(step=1, path="p" * 9999)))
    assert cut == PartSaved(step=1, path="p" * wire.MAX_TEXT)
    with pytest.raises(WireError, match="4096"):
        encode(PartSaved(step=1, path="ü" * 2000))
