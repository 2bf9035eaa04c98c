"""Notices: what this pod was asked to save, and what became of it.

The operator sends a notice to the leader, which hands it on to every member; each agent writes it
to its ranks, and they agree among themselves at which step. A pod that is told to stop (a drain, a
kubelet that shuts down) asks for a save the same way, under an id of its own that no status shows.

Ranks have one notice at a time. One save answers every notice that was taken before it, so a second
one is only written to them if it asks for more: to leave. What a pod asked for that is gone by now
is forgotten when the others start anew: no rank of that pod is left to agree to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.change_notifier import ChangeNotifier
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.contract import Notice, NoticeAnswer
from drumline_trainer.rank_protocol.orders import RankOrder, SaveNotice, Withdraw

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drumline_trainer.agent.state.rank_status import RankStatusStore
    from drumline_trainer.rank_protocol.heartbeat import NoticeSaved

POD_NOTICE_PREFIX = "pod-ends/"
"""Prefix of the ids that agents make."""


@dataclass(slots=True)
class _Taken:
    notice: Notice
    answer: NoticeAnswer

    @property
    def answered(self) -> bool:
        return self.answer.step is not None or bool(self.answer.error)


class SaveNotices:
    """Those taken in this pod, by id."""

    def __init__(self, board: RankStatusStore) -> None:
        self._board = board
        self._taken: dict[str, _Taken] = {}
        self._withdrawn: set[str] = set()
        self._ours: set[str] = set()
        self._asked: Notice | None = None
        """The one the ranks have."""
        self._bell = ChangeNotifier()
        self.send_to_ranks: Callable[[RankOrder], None] = lambda _: None

    def accept(self, notice: Notice, *, ours: bool = False) -> bool:
        """Act on a notice. False if it was known already.

        Args:
            notice: what is asked.
            ours: it is this pod that ends: its ranks stop where they saved, so that no step is
                done that would have to be done again.
        """
        if notice.withdraw:
            return self._withdraw(notice.id)
        if notice.id in self._taken or notice.id in self._withdrawn:
            return False
        log(AgentEvent.NOTICE_TAKEN, id=notice.id, leave=notice.leave)
        self._taken[notice.id] = _Taken(notice, NoticeAnswer(id=notice.id))
        if ours:
            self._ours.add(notice.id)
        if self._asked is None or (notice.leave and not self._asked.leave):
            self._ask(notice)
        self._show()
        return True

    def resend(self, *, present: Collection[str]) -> None:
        """Tell ranks that have just started what the others know.

        Args:
            present: uids of the pods of the gang as it is now.
        """
        for name in list(self._taken):
            if (
                name.startswith(POD_NOTICE_PREFIX)
                and name.removeprefix(POD_NOTICE_PREFIX) not in present
            ):
                self._withdraw(name)
        if self._asked is not None:
            self._ask(self._asked)

    @property
    def unanswered(self) -> list[Notice]:
        """The operator's, oldest first."""
        return [
            one.notice
            for name, one in self._taken.items()
            if not one.answered and not name.startswith(POD_NOTICE_PREFIX)
        ]

    def record_answer(self, saved: NoticeSaved) -> None:
        """A rank has answered: the first of this pod to do so counts."""
        if self._asked is None or saved.notice != self._asked.id:
            return
        self._asked = None
        for taken in self._taken.values():
            if not taken.answered:
                taken.answer = NoticeAnswer(
                    id=taken.notice.id, step=saved.step, digest=saved.digest, error=saved.error
                )
        log(AgentEvent.NOTICE_ANSWERED, id=saved.notice, step=saved.step, error=saved.error)
        self._show()

    async def wait_for_answer(self, notice_id: str) -> NoticeAnswer:
        """Wait for the answer to a notice taken before."""

        def answer() -> NoticeAnswer | None:
            taken = self._taken[notice_id]
            return taken.answer if taken.answered else None

        return await self._bell.wait_for(answer)

    def _withdraw(self, notice_id: str) -> bool:
        if notice_id in self._withdrawn:
            return False
        self._withdrawn.add(notice_id)
        known = self._taken.pop(notice_id, None)
        if known is not None:
            log(AgentEvent.NOTICE_WITHDRAWN, id=notice_id, answered=known.answered)
        if self._asked is not None and self._asked.id == notice_id:
            self._asked = None
            self.send_to_ranks(Withdraw(id=notice_id))
            waiting = [one.notice for one in self._taken.values() if not one.answered]
            if waiting:
                self._ask(waiting[-1])
        self._show()
        return True

    def _ask(self, notice: Notice) -> None:
        self._asked = notice
        leave = notice.leave or notice.id in self._ours
        self.send_to_ranks(SaveNotice(id=notice.id, leave=leave))

    def _show(self) -> None:
        shown = [
            one.answer
            for name, one in self._taken.items()
            if not name.startswith(POD_NOTICE_PREFIX)
        ]
        self._board.notice = shown[-1] if shown else None
        self._board.publish()
        self._bell.notify()
