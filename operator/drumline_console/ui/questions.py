"""Answer the what-if questions of all callers, one at a time. Few may wait.

The objects of the whole cluster and the decisions about them need the most memory of the page. They
are kept for one caller, for seconds, while the caller moves a slider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from drumline.kube.credentials import Credentials
from drumline_cli.decide import live_objects, what_if
from drumline_cli.decide.live_objects import LiveObjects
from drumline_cli.decide.what_if import Change, WhatIfAnswer
from drumline_cli.errors import Busy
from drumline_console.ui.cancellation import finish
from drumline_console.ui.kept_value import KeptValue, Later, later
from drumline_scheduler.model import Policy

# Long enough for moving a slider, and short enough to show current decisions.
BASELINE_SECONDS: Final = 15.0
MOST_WAITING: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    baseline: what_if.Baseline
    remarks: tuple[str, ...]


class Questions:
    """Answers to questions, one after another.

    Args:
        policy: scheduling policy of the operator.
        read: function that reads the objects.
        after: function that sets the timer.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        read: Callable[[Credentials], Awaitable[LiveObjects]] = live_objects.read,
        after: Later = later,
    ) -> None:
        self._policy = policy
        self._read = read
        self._turn = asyncio.Lock()
        # One turn for all, because a cycle uses a whole processor core.
        self._waiting: set[str] = set()
        self._caller = b""
        self._kept: KeptValue[_Asked] = KeptValue(seconds=BASELINE_SECONDS, after=after)

    async def answer(
        self, change: Change, *, caller: bytes, share: str, credentials: Credentials
    ) -> WhatIfAnswer:
        """Return the changed decisions of one cycle, on objects at most `BASELINE_SECONDS` old.

        Args:
            change: the change to evaluate.
            caller: caller whose objects are kept. No other caller sees them.
            share: share whose turn the question takes. It may have many credentials.
            credentials: credentials of the caller.

        Raises:
            Busy: another question of this share waits, or too many shares wait.
            CommandError: a kind may not be listed, or an object of the change does not exist.
        """
        # cycles of two questions would take as long side by side
        async with self._turn_of(share):
            # Objects of one caller must never answer another caller.
            if caller != self._caller:
                self._kept.drop()
                self._caller = caller
            known = await self._kept.value(lambda: self._baseline(credentials))
            # The thread cannot be stopped, so its turn lasts until its end.
            answer = await finish(asyncio.to_thread(what_if.answer, known.baseline, change))
        return replace(answer, remarks=(*known.remarks, *answer.remarks))

    def changed_by(self, caller: bytes) -> None:
        """Drop the kept objects, so that the caller's next question reads them again."""
        if caller == self._caller:
            self._kept.drop()

    @asynccontextmanager
    async def _turn_of(self, share: str) -> AsyncGenerator[None]:
        if share in self._waiting:
            raise Busy(
                "Another question of yours is still pending; ask again after it is answered."
            )
        if len(self._waiting) >= MOST_WAITING:
            raise Busy("Too many questions are pending; ask again in a minute.")
        self._waiting.add(share)
        try:
            await self._turn.acquire()
        # The place is free once the turn has come, or the wait was cancelled.
        finally:
            self._waiting.discard(share)
        try:
            yield
        finally:
            self._turn.release()

    async def _baseline(self, credentials: Credentials) -> _Asked:
        live = await self._read(credentials)
        made = await finish(
            asyncio.to_thread(what_if.baseline, live.manifests, policy=self._policy)
        )
        return _Asked(baseline=made, remarks=live.remarks)
