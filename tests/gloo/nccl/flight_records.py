"""What ProcessGroupNCCL records of its operations, as torch writes it (FlightRecorder.hpp, 2.10).

A ring for the whole process, over all groups. `test_flight_records.py` holds the fields against
those that torch itself writes for Gloo.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MOST = 2000
"""TORCH_FR_BUFFER_SIZE as the trainer sets it."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One operation; its state is what the device has come to."""

    group: tuple[str, str]
    """Name and description."""
    group_id: int
    collective_number: int
    transfer_number: int
    name: str
    is_transfer: bool
    timeout_ms: int
    created_ns: int = field(default_factory=time.time_ns)
    started_ns: int = 0
    completed_ns: int = 0

    @property
    def state(self) -> str:
        """As torch calls it."""
        if self.completed_ns:
            return "completed"
        return "started" if self.started_ns else "scheduled"

    def start(self) -> None:
        """The device has come to it."""
        self.started_ns = time.time_ns()

    def complete(self) -> None:
        """It has ended on the device."""
        self.completed_ns = time.time_ns()

    def to_dict(self, number: int) -> dict[str, Any]:
        """The entry."""
        return {
            "record_id": number,
            "pg_id": self.group_id,
            "process_group": list(self.group),
            "collective_seq_id": self.collective_number,
            "p2p_seq_id": self.transfer_number,
            "op_id": number + 1,
            "profiling_name": f"nccl:{self.name}",
            "time_created_ns": self.created_ns,
            "time_discovered_started_ns": self.started_ns,
            "time_discovered_completed_ns": self.completed_ns,
            "input_sizes": [],
            "input_dtypes": [],
            "output_sizes": [],
            "output_dtypes": [],
            "state": self.state,
            "timeout_ms": self.timeout_ms,
            "is_p2p": self.is_transfer,
            "retired": bool(self.completed_ns),
            "thread_id": str(threading.get_ident()),
            "thread_name": "python",
        }


class FlightRecords:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[tuple[int, Record]] = deque(maxlen=MOST)
        self._groups: dict[str, tuple[str, Sequence[int]]] = {}
        self._number = 0

    def know(self, name: str, description: str, ranks: Sequence[int]) -> int:
        """There is a group of these ranks of the default group. Returns its number."""
        with self._lock:
            self._groups.setdefault(name, (description, list(ranks)))
            return list(self._groups).index(name)

    def add(self, record: Record) -> None:
        """One more."""
        with self._lock:
            self._records.append((self._number, record))
            self._number += 1

    def reset(self) -> None:
        """As `_reset_fr_recording_nccl`: what was recorded so far is left out."""
        with self._lock:
            self._records.clear()
            self._groups.clear()

    def dump(self) -> str:
        """As `_dump_nccl_trace_json`."""
        with self._lock:
            entries = [record.to_dict(number) for number, record in self._records]
            groups = {
                name: {"name": name, "desc": description, "ranks": str(list(ranks))}
                for name, (description, ranks) in self._groups.items()
            }
        whole = {
            "version": "2.10",
            "comm_lib_version": "2.29.7",
            "nccl_comm_state": {},
            "pg_config": groups,
            "pg_status": {},
            "entries": entries,
        }
        return json.dumps(whole)


RECORDS = FlightRecords()
