"""Messages of the clients of a member's ranks (`PUT /v1/clients`), for the leader.

JSON, signed with the job's token. Each entry is a rank and the line that its client wrote
(`drumline_client.wire`), in the order of arrival. An empty line means a closed connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES, Membership
from drumline_client.wire import (
    MAX_LINE_BYTES,
    ClientMessage,
    WireError,
    decode_client_message,
)
from drumline_contract import ContractError
from drumline_contract import json_fields as read

CLIENTS_PATH = "/v1/clients"
MAX_SAID = 100
"""In a request: lines of the greatest length, escaped again, are within MAX_MESSAGE_BYTES."""
MAX_CLIENT_RANKS = 1 << 20
"""Maximum number of ranks of a job. Under PerPod they are processes that the user's launcher
starts."""


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A client's connection is closed, by it or by its end."""


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A message of a rank's client."""

    rank: int
    message: ClientMessage | ConnectionClosed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessages:
    """Messages of the clients of a member in this membership."""

    index: int
    generation: int
    attempt: int
    said: list[tuple[int, str]]
    """Ranks and lines; at most MAX_SAID."""

    @property
    def membership(self) -> Membership:
        """The membership of these ranks."""
        return self.generation, self.attempt

    def decoded(self) -> list[RankSaid]:
        """Decode the messages. Unknown ones, of a newer client, are left out.

        Raises:
            WireError: a message is malformed.
        """
        decoded: list[RankSaid] = []
        for rank, line in self.said:
            message = decode_client_message(line.encode()) if line else ConnectionClosed()
            if message is not None:
                decoded.append(RankSaid(rank, message))
        return decoded


def parse_client_messages(body: bytes) -> ClientMessages:
    """Read what a member's clients said. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    messages = ClientMessages(
        index=read.integer(raw, "index"),
        generation=read.integer(raw, "generation"),
        attempt=read.integer(raw, "attempt"),
        said=[_entry(entry) for entry in read.array(raw, "said", most=MAX_SAID)],
    )
    try:
        messages.decoded()
    except WireError as error:
        raise ContractError(f"said: {error}") from None
    return messages


def _entry(entry: object) -> tuple[int, str]:
    match cast("list[object]", entry) if isinstance(entry, list) else []:
        case [int(rank), str(line)] if (
            type(rank) is int and 0 <= rank < MAX_CLIENT_RANKS and len(line) <= MAX_LINE_BYTES
        ):
            return rank, line
        case _:
            raise ContractError("said: each entry must be a rank and a line")
