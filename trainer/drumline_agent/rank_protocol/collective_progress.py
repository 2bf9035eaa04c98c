"""Progress of a rank in the collectives of its groups, from PyTorch's flight recorder.

PyTorch counts the operations of each process group (`collective_seq_id`), which are the same on
every rank of the group. It records for each operation whether the process scheduled it, the device
started it, or it completed (`_dump_nccl_trace_json`, FlightRecorder.hpp, format 2). Sends and
receives are not counted alike on both sides, so the pending ones are listed. Standard library only,
pure.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline_contract import json_fields as read

MAX_GROUPS = 64
MAX_PENDING = 32
MAX_NAME = 128
_FORMAT = "2."
_PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """One process group, as one of its ranks has used it."""

    group: str
    """Name of the group, equal on all its ranks."""
    size: int
    """Its number of ranks."""
    enqueued: int = 0
    """Number of the last collective that the process has called, counted from 1."""
    started: int | None = None
    """Number of the last operation that the device has started. None: starts are not recorded."""
    completed: int = 0
    """Number of the last operation before the first incomplete one."""
    operation: str = ""
    """Name of the first incomplete operation, such as `all_reduce`."""

    @property
    def reached(self) -> int:
        """Number of the last collective that the others need not wait for this rank in."""
        return self.enqueued if self.started is None else self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransfer:
    """A send or a receive that is not complete."""

    group: str
    source: int
    """Rank in the default group."""
    target: int
    started: bool
    """On the device; where torch did not watch starts: called."""


@dataclass(frozen=True, slots=True)
class CollectiveProgress:
    """All groups of one rank."""

    groups: tuple[GroupProgress, ...] = ()
    transfers: tuple[PendingTransfer, ...] = ()


def progress_of(dump: Mapping[str, Any], *, rank: int, timed: bool) -> CollectiveProgress:
    """Read a dump of torch's flight recorder.

    Args:
        dump: the JSON object.
        rank: rank of the dump in the default group.
        timed: whether torch watches when operations start (TORCH_NCCL_ENABLE_TIMING).

    Raises:
        KeyError, TypeError, ValueError: it has another format.
    """
    if not str(dump["version"]).startswith(_FORMAT):
        raise ValueError(f"flight recorder format {dump['version']} is not known")
    # 1. The groups of this rank. A group of one rank cannot hang.
    ranks = {str(name): _ranks(config) for name, config in dump["pg_config"].items()}
    collectives: dict[str, list[Mapping[str, Any]]] = {
        name: [] for name, members in ranks.items() if rank in members and len(members) > 1
    }
    transfers: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    # 2. Sort the recorded operations by group, sends and receives apart.
    for entry in dump.get("entries", ()):
        name = str(entry["process_group"][0])
        if entry["is_p2p"]:
            transfers[name, int(entry["p2p_seq_id"])].append(entry)
        elif name in collectives:
            collectives[name].append(entry)
    # 3. Sum up, in bounded numbers: the result travels in every heartbeat.
    groups = [
        _group(name, entries, size=len(ranks[name]), timed=timed)
        for name, entries in collectives.items()
    ]
    pending = [
        transfer
        for (name, _), entries in sorted(transfers.items())
        if name in ranks
        for transfer in _pending(name, entries, ranks=ranks[name], timed=timed)
    ]
    return CollectiveProgress(
        groups=tuple(groups[:MAX_GROUPS]), transfers=tuple(pending[:MAX_PENDING])
    )


def parse_progress(raw: dict[str, Any]) -> CollectiveProgress:
    """Read a decoded `CollectiveProgress`. Raises ContractError."""
    return CollectiveProgress(
        groups=tuple(
            GroupProgress(
                group=read.text(each, "group", limit=MAX_NAME),
                size=read.integer(each, "size"),
                enqueued=read.integer(each, "enqueued"),
                started=read.optional_integer(each, "started"),
                completed=read.integer(each, "completed"),
                operation=read.text(each, "operation", limit=MAX_NAME),
            )
            for each in read.objects(raw, "groups", limit=MAX_GROUPS)
        ),
        transfers=tuple(
            PendingTransfer(
                group=read.text(each, "group", limit=MAX_NAME),
                source=read.integer(each, "source"),
                target=read.integer(each, "target"),
                started=read.flag(each, "started"),
            )
            for each in read.objects(raw, "transfers", limit=MAX_PENDING)
        ),
    )


def _ranks(config: Mapping[str, Any]) -> list[int]:
    """Decode the ranks of a group, which may be text such as `[0, 1]`."""
    ranks = ast.literal_eval(config["ranks"]) if isinstance(config["ranks"], str) else None
    return [int(rank) for rank in (config["ranks"] if ranks is None else ranks)]


def _group(
    name: str, entries: Iterable[Mapping[str, Any]], *, size: int, timed: bool
) -> GroupProgress:
    """Read the entries of one group into its progress.

    Entries of one number are the parts of one coalesced operation: its last has the state.
    """
    states: dict[int, set[str]] = defaultdict(set)
    operations: dict[int, str] = {}
    for entry in entries:
        number = int(entry["collective_seq_id"])
        states[number].add(str(entry["state"]))
        operations[number] = _operation(entry)
    incomplete = [number for number, seen in states.items() if "completed" not in seen]
    begun = [number for number, seen in states.items() if seen & {"started", "completed"}]
    # what the ring of the recorder has lost was complete
    before = min(states, default=1) - 1
    enqueued = max(states, default=0)
    first = min(incomplete, default=enqueued + 1)
    return GroupProgress(
        group=name[:MAX_NAME],
        size=size,
        enqueued=enqueued,
        started=max(begun, default=before) if timed else None,
        completed=first - 1,
        operation=operations.get(first, "")[:MAX_NAME],
    )


def _pending(
    name: str, entries: list[Mapping[str, Any]], *, ranks: list[int], timed: bool
) -> Iterable[PendingTransfer]:
    """Yield the transfers that have not completed.

    Transfers of one number were coalesced: what one of them has reached, all have.
    """
    states = {str(entry["state"]) for entry in entries}
    if "completed" in states:
        return
    for entry in entries:
        peers = _PEERS.search(str(entry["profiling_name"]))
        if peers is None:
            continue
        first, second = ranks[int(peers[2])], ranks[int(peers[3])]
        source, target = (first, second) if peers[1] == "send" else (second, first)
        yield PendingTransfer(
            group=name[:MAX_NAME],
            source=source,
            target=target,
            started=not timed or "started" in states,
        )


def _operation(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2].partition(" ")[0]
