"""From what happened to a rank's process to the `Fault` that the leader hears of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.outcome import pod_exit_code
from drumline_trainer.agent.processes import fault_classification
from drumline_trainer.agent.protocol.member_reports import Fault
from drumline_trainer.contract import MAX_CAUSE_CHARS, ExitCode, FaultClass

if TYPE_CHECKING:
    from pathlib import Path

    from drumline_trainer.agent.processes.rank_process import RankProcess
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.agent.state.rank_status import RankStatusStore
    from drumline_trainer.rank_protocol.heartbeat import Quiesced


class RankFaults:
    """Of one pod; remembers how often the kernel has killed in it for memory.

    What is killed in the same attempt was killed for the same.
    """

    def __init__(self, *, board: RankStatusStore, index: int, cgroup: Path | None = None) -> None:
        self._board = board
        self._index = index
        self._cgroup = fault_classification.own_cgroup() if cgroup is None else cgroup
        self._memory_kills = fault_classification.memory_kills(self._cgroup)
        self._short_of_memory: Membership | None = None

    def peers_lost(self, rank: RankProcess, parked: Quiesced) -> Fault:
        """The rank lost its peers, or they were cut off from it."""
        return self._fault(
            rank,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause=f"rank {rank.placement.rank}: lost its peers: {parked.reason}"[:MAX_CAUSE_CHARS],
            exit_code=ExitCode.PEER_LOST,
            step=parked.step,
        )

    def process_ended(self, rank: RankProcess, code: int) -> Fault:
        """The process ended (code < 0: by a signal), and nobody had told it to."""
        number = rank.placement.rank
        if rank.kill_reason:
            return self._fault(
                rank,
                fault_class=FaultClass.HANG,
                cause=f"rank {number}: {rank.kill_reason}",
                exit_code=pod_exit_code(code),
            )
        if code == ExitCode.OK:
            return self._fault(
                rank,
                fault_class=FaultClass.APPLICATION,
                cause=f"rank {number}: ended with exit code 0 before its work was done",
                exit_code=ExitCode.APPLICATION,
            )
        kills = fault_classification.memory_kills(self._cgroup)
        if kills > self._memory_kills:
            self._memory_kills, self._short_of_memory = kills, rank.placement.membership
        return self._fault(
            rank,
            fault_class=fault_classification.classify(
                code,
                error=rank.error,
                killed_for_memory=self._short_of_memory == rank.placement.membership,
            ),
            cause=fault_classification.cause(number, code, words=rank.last_words),
            exit_code=pod_exit_code(code),
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
        heard = self._board.heartbeats.get(rank.placement.rank)
        trained = heard is not None and heard.heartbeat.position[0] >= 0
        now = time.time()
        silent_seconds = time.monotonic() - heard.at if rank.kill_reason and heard else 0.0
        if not trained or heard is None:
            step = rank.placement.restore_snapshot or 0
        elif step is None:
            step = heard.heartbeat.step
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
            consequence=exit_code == ExitCode.PEER_LOST,
            in_restore=bool(rank.error) and not trained,
        )
