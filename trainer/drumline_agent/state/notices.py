"""Keep the save notices of this pod, and their answers.

The operator sends a notice (a spot notice, a maintenance, a preemption) to the leader, which
forwards it to every member. Each agent writes it to its ranks, which agree on the step. A pod that
is stopped by the kubelet (a drain, a node that shuts down) asks for a save in the same way, under
an id of its own that no status shows.

Ranks have one notice at a time. One save answers every notice that was accepted before it, so a
second notice is only written to the ranks if it also requests them to leave. Ranks of a pod that
left the gang cannot agree to its notice, so the next attempt drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.orders import RankOrder, SaveNotice, Withdraw
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import Notice, NoticeAnswer

POD_NOTICE_PREFIX = "pod-ends/"
"""Prefix of the ids of notices that agents make."""


@dataclass(slots=True)
class _AcceptedNotice:
    notice: Notice
    answer: NoticeAnswer

    @property
    def answered(self) -> bool:
        return self.answer.step is not None or bool(self.answer.error)


class SaveNotices:
    """The notices accepted in this pod, by id."""

    def __init__(self, status: RankStatusStore) -> None:
        self._status = status
        self._accepted: dict[str, _AcceptedNotice] = {}
        self._withdrawn: set[str] = set()
        self._own: set[str] = set()
        """Ids of notices that this pod itself has made."""
        self._active: Notice | None = None
        """The notice that the ranks have."""
        self._notifier = ChangeNotifier()
        self.send_to_ranks: Callable[[RankOrder], None] = lambda _: None

    def accept(self, notice: Notice, *, own: bool = False) -> bool:
        """Act on a notice. False if it was known already.

        Args:
            notice: what is asked.
            own: this pod is the one that ends: its ranks stop after the save, so that no step is
                done that would have to be redone.
        """
        if notice.withdraw:
            return self._withdraw(notice.id)
        if notice.id in self._accepted or notice.id in self._withdrawn:
            return False
        log(AgentEvent.NOTICE_TAKEN, id=notice.id, leave=notice.leave)
        self._accepted[notice.id] = _AcceptedNotice(notice, NoticeAnswer(id=notice.id))
        if own:
            self._own.add(notice.id)
        if self._active is None or (notice.leave and not self._active.leave):
            self._activate(notice)
        self._publish()
        return True

    def resend(self, *, present: Collection[str]) -> None:
        """Send the active notice to ranks that have just started.

        Args:
            present: uids of the pods of the gang as it is now.
        """
        for name in list(self._accepted):
            if is_of_a_pod(name) and name.removeprefix(POD_NOTICE_PREFIX) not in present:
                self._withdraw(name)
        if self._active is not None:
            self._activate(self._active)

    @property
    def unanswered(self) -> list[Notice]:
        """The operator's notices without an answer, oldest first."""
        return [
            accepted.notice
            for name, accepted in self._accepted.items()
            if not accepted.answered and not is_of_a_pod(name)
        ]

    def record_answer(self, saved: NoticeSaved) -> None:
        """Record a rank's answer. Only the first answer of this pod counts.

        The answer to the active notice is one to all. A notice that asks to leave may have replaced
        the active one during its save.
        """
        known = self._accepted.get(saved.notice)
        if known is None or known.answered:
            return
        answered = [known]
        if self._active is not None and self._active.id == saved.notice:
            self._active, answered = None, [*self._accepted.values()]
        for accepted in answered:
            if not accepted.answered:
                accepted.answer = NoticeAnswer(
                    id=accepted.notice.id, step=saved.step, digest=saved.digest, error=saved.error
                )
        log(AgentEvent.NOTICE_ANSWERED, id=saved.notice, step=saved.step, error=saved.error)
        self._publish()

    async def wait_for_answer(self, notice_id: str) -> NoticeAnswer:
        """Wait for the answer to a notice that was accepted before."""

        def answer() -> NoticeAnswer | None:
            accepted = self._accepted[notice_id]
            return accepted.answer if accepted.answered else None

        return await self._notifier.wait_for(answer)

    def _withdraw(self, notice_id: str) -> bool:
        if notice_id in self._withdrawn:
            return False
        self._withdrawn.add(notice_id)
        known = self._accepted.pop(notice_id, None)
        if known is not None:
            log(AgentEvent.NOTICE_WITHDRAWN, id=notice_id, answered=known.answered)
        if self._active is not None and self._active.id == notice_id:
            self._active = None
            self.send_to_ranks(Withdraw(id=notice_id))
            waiting = [known.notice for known in self._accepted.values() if not known.answered]
            if waiting:
                self._activate(waiting[-1])
        self._publish()
        return True

    def _activate(self, notice: Notice) -> None:
        self._active = notice
        leave = notice.leave or notice.id in self._own
        self.send_to_ranks(SaveNotice(id=notice.id, leave=leave))

    def _publish(self) -> None:
        """Show the newest of the operator's notices in the status."""
        shown = [known.answer for name, known in self._accepted.items() if not is_of_a_pod(name)]
        self._status.notice = shown[-1] if shown else None
        self._status.publish()
        self._notifier.notify()


def is_of_a_pod(notice_id: str) -> bool:
    """Return whether a pod that ends has made this notice."""
    return notice_id.startswith(POD_NOTICE_PREFIX)
