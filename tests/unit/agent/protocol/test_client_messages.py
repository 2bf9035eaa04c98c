"""What arrives from another agent's clients is a tenant's: checked before the leader acts on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_agent.protocol.client_messages import (
    MAX_SAID,
    ClientMessages,
    ConnectionClosed,
    RankSaid,
    parse_client_messages,
)
from drumline_agent.protocol.encoding import encode as encode_message
from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES
from drumline_client.wire import MAX_LINE_BYTES, MAX_TEXT, PartSaved, encode
from drumline_contract import ContractError

LONGEST = encode(PartSaved(step=2**53, path='"' * 1990)).decode()


def messages(*said: tuple[int, str]) -> ClientMessages:
    return ClientMessages(index=1, generation=2, attempt=3, said=list(said))


def test_messages_arrive_as_they_were_sent() -> None:
    sent = messages((4, encode(PartSaved(step=7, path="/p")).decode()), (5, ""))
    arrived = parse_client_messages(encode_message(sent))
    assert arrived == sent
    assert arrived.decoded() == [
        RankSaid(4, PartSaved(step=7, path="/p")),
        RankSaid(5, ConnectionClosed()),
    ]


def test_as_many_of_the_longest_lines_as_are_sent_at_once_fit_into_a_request() -> None:
    assert MAX_TEXT < len(LONGEST) <= MAX_LINE_BYTES
    assert len(encode_message(messages(*[(1, LONGEST)] * MAX_SAID))) <= MAX_MESSAGE_BYTES


def test_messages_of_a_newer_client_are_passed_over() -> None:
    assert messages((1, '{"t": "newer"}')).decoded() == []


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        [[1, "{}"]] * (MAX_SAID + 1),
        [[-1, "{}"]],
        [[True, "{}"]],
        [[1 << 20, "{}"]],
        [[1]],
        [[1, 2]],
        ["1"],
        [[1, "no json"]],
        [[1, '{"t": "saved", "step": "x"}']],
        [[1, " " * (MAX_LINE_BYTES + 1)]],
    ],
)
def test_anything_else_is_refused(said: Any) -> None:
    body = json.dumps({"index": 1, "generation": 2, "attempt": 3, "said": said}).encode()
    with pytest.raises(ContractError):
        parse_client_messages(body)
