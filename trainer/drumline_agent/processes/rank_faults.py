"""From the end of a rank's process, or the loss of its peers, to the `Fault` that is reported."""

from __future__ import annotations

import time
from pathlib import Path

from drumline_agent.base.exit_codes import pod_exit_code
from drumline_agent.processes import fault_classification
from drumline_agent.processes.fault_classification import MemoryKills
from drumline_agent.processes.full_folders import with_full_folder
from drumline_agent.processes.rank_process import RankProcess
from drumline_agent.protocol.member_reports import Fault
from drumline_agent.rank_protocol.messages import Quiesced
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import MAX_CAUSE_CHARS, ExitCode, FaultClass


class RankFaults:
    """Faults of the ranks of one pod.

    Args:
        status: status of this pod's ranks.
        index: index of this pod's member.
        cgroup: folder of the pod's cgroup, for out-of-memory kills.
    """

    def __init__(self, *, status: RankStatusStore, index: int, cgroup: Path | None = None) -> None:
        self._status = status
        self._index = index
        self._memory = MemoryKills(cgroup)

    def peers_lost(self, rank: RankProcess, quiesced: Quiesced) -> Fault:
        """Report that a rank has lost its peers: another rank or the network failed."""
        cause = f"rank {rank.placement.rank}: lost its peers: {quiesced.reason}"
        return self._fault(
            rank,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause=cause[:MAX_CAUSE_CHARS],
            exit_code=ExitCode.PEER_LOST,
            step=quiesced.step,
        )

    def process_ended(self, rank: RankProcess, code: int) -> Fault:
        """Report an unexpected end of a process. A negative code is the signal that ended it."""
        number = rank.placement.rank
        # 1. The leader had it killed as hung.
        if rank.kill_reason is not None:
            return self._fault(
                rank,
                fault_class=FaultClass.HANG,
                cause=f"rank {number}: {rank.kill_reason}",
                exit_code=pod_exit_code(code),
            )
        # 2. A library ended the process with 0, in the middle of the work.
        if code == ExitCode.OK:
            return self._fault(
                rank,
                fault_class=FaultClass.APPLICATION,
                cause=f"rank {number}: ended with exit code 0 before its work was done",
                exit_code=ExitCode.APPLICATION,
            )
        # 3. Otherwise its exception, its exit code and the kernel tell the cause.
        error = with_full_folder(rank.error)
        device = fault_classification.device_failed(code, error=error)
        fault_class = fault_classification.classify(
            code,
            error=error,
            killed_for_memory=self._memory.ran_out(rank.placement.membership),
        )
        return self._fault(
            rank,
            fault_class=fault_class,
            cause=fault_classification.cause(
                number,
                code,
                error=error,
                last_line=rank.output.last_line,
                memory_limit_bytes=self._memory.limit_bytes()
                if fault_class == FaultClass.OUT_OF_MEMORY
                and (not error or fault_classification.child_killed(error))
                else None,
            ),
            exit_code=ExitCode.DEVICE if device else pod_exit_code(code),
        )

    def _fault(
        self,
        rank: RankProcess,
        *,
        fault_class: FaultClass,
        cause: str,
        exit_code: int,
        step: int | None = None,
    ) -> Fault:
        received = self._status.heartbeats.get(rank.placement.rank)
        trained = received is not None and received.heartbeat.position[0] >= 0
        now = time.time()
        hung = rank.kill_reason is not None
        # A hang began with the last heartbeat, not when it was noticed.
        silent_seconds = time.monotonic() - received.at if hung and received else 0.0
        # Before its first step a rank has only the step that it restored.
        if not trained or received is None:
            step = rank.placement.restore_snapshot or 0
        elif step is None:
            step = received.heartbeat.step
        generation, attempt = rank.placement.membership
        return Fault(
            generation=generation,
            attempt=attempt,
            index=self._index,
            rank=rank.placement.rank,
            fault_class=fault_class,
            cause=cause,
            at=now - silent_seconds,
            detected_at=now,
            step=step,
            exit_code=exit_code,
            # Ranks that lost their peers name no cause. The root cause is elsewhere.
            consequence=exit_code == ExitCode.PEER_LOST,
            # Such a fault makes the restored snapshot suspicious.
            in_restore=bool(rank.error) and not trained,
        )
