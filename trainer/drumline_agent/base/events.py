"""The agent's own log: one JSON object per line, on the same stream as the output of its ranks.

One stream keeps the order in `kubectl logs`: what a rank printed, then what the agent did about it.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum


class AgentEvent(StrEnum):
    """Everything an agent logs."""

    AGENT_STARTED = "agent_started"
    AGENT_READY = "agent_ready"
    RECORD_ACCEPTED = "record_accepted"
    RECORD_REFUSED = "record_refused"
    RECORD_DELIVERED = "record_delivered"
    RECORD_UNDELIVERABLE = "record_undeliverable"
    RANKS_STARTED = "ranks_started"
    RANK_EXITED = "rank_exited"
    RANK_PARKED = "rank_parked"
    RANK_KILLED = "rank_killed"
    RANK_LINGERS = "rank_lingers"
    STORE_EXITED = "store_exited"
    MEMBER_DEPARTED = "member_departed"
    MEMBER_LOST = "member_lost"
    MEMBER_SILENT = "member_silent"
    ROUND_BEGUN = "round_begun"
    FAULT = "fault"
    INCIDENT = "incident"
    SNAPSHOT_COPIED = "snapshot_copied"
    SNAPSHOT_REFUSED = "snapshot_refused"
    """A rank cannot restore its snapshot, so all ranks use an older one."""
    SNAPSHOT_NOT_COPIED = "snapshot_not_copied"
    NOTICE_TAKEN = "notice_taken"
    NOTICE_ANSWERED = "notice_answered"
    NOTICE_WITHDRAWN = "notice_withdrawn"
    TERMINATION_REQUESTED = "termination_requested"
    GENERATION_SUPERSEDED = "generation_superseded"
    GANG_FAILED = "gang_failed"
    GANG_HELD = "gang_held"
    """It gives up, and its pods stay for a while."""
    GANG_FILES_WRITTEN = "gang_files_written"
    GANG_FILES_FAILED = "gang_files_failed"
    HEARTBEAT_REFUSED = "heartbeat_refused"
    NOTICE_FILE_FAILED = "notice_file_failed"
    CLIENT_SOCKET_FAILED = "client_socket_failed"
    SAVE_PROPOSED = "save_proposed"
    SAVE_AGREED = "save_agreed"
    STANDBY_READY = "standby_ready"
    STANDBY_FAILED = "standby_failed"
    """A process with preloaded modules cannot be used: its rank starts without."""
    CHECKPOINT_REPORTED = "checkpoint_reported"
    FINISHED = "finished"


def log(event: AgentEvent, **fields: object) -> None:
    """Write one event; fields must be JSON values."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    write_line(json.dumps(line, separators=(",", ":")).encode())


def write_line(line: bytes) -> None:
    """Write one line of output and flush it."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
