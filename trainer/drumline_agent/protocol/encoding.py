"""Messages between agents as bytes: what is sent and signed."""

from __future__ import annotations

import json
from dataclasses import asdict

from drumline_agent.protocol.client_messages import ClientMessages
from drumline_agent.protocol.inventory import Inventory
from drumline_agent.protocol.leader_orders import (
    KINDS,
    LeaderOrder,
)
from drumline_agent.protocol.member_reports import Fault, MemberHeartbeat
from drumline_agent.protocol.rank_stacks import RankStacks

Message = LeaderOrder | MemberHeartbeat | Fault | Inventory | RankStacks | ClientMessages


def encode(message: Message) -> bytes:
    """Return a message as JSON bytes; an order has its kind beside its fields."""
    whole = asdict(message)
    if isinstance(message, LeaderOrder):
        whole["kind"] = KINDS[type(message)]
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
