"""Evaluate jobs, send messages about their changes, and keep the record of sent messages.

The order guarantees that a message is sent once. A change is evaluated in memory. The record stores
that the change is known and which messages are pending. Only then are the messages sent. After they
are accepted, the record forgets them. A restart continues from the record, so a known change causes
no second message. If the process is killed between the acceptance and its record, it sends the
message again with the same ID.

A first start has no record, and sends no messages about the past.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Final, Protocol

from drumline.kube.errors import KubeError
from drumline.kube.store import Change, Event
from drumline.telemetry import logs
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_addons.notifications.budgets import NotifiableQueue, budget_change, user_change
from drumline_addons.notifications.channels import (
    NotificationSettings,
    destinations,
    refused_choices,
)
from drumline_addons.notifications.delivery import MOST_AGE_SECONDS, ChannelWorker
from drumline_addons.notifications.events import KnownOutlook, OutlookChange, advanced
from drumline_addons.notifications.jobs import NotifiableJob
from drumline_addons.notifications.record import (
    FREE_FACTOR,
    MOST_JOBS,
    MOST_PENDING,
    MOST_PENDING_OF_A_JOB,
    MOST_PENDING_OF_A_NAMESPACE,
    PendingMessage,
    SentRecord,
)

log = logs.get("drumline_addons.notifications.notifier")

# The API server sends no event for time that passes, so stuck jobs need a clock.
TICK_SECONDS: Final = 15.0
"""Seconds between two checks of all jobs. Waiting too long causes no event of the API server."""
SAVE_SECONDS: Final = 1.0
"""Seconds within which all changes go into one write of the record."""
_LONGEST_PAUSE_SECONDS: Final = 30.0


class RecordKeeper(Protocol):
    """Storage of the record across restarts."""

    async def write(self, record: SentRecord) -> None:
        """Replace the record.

        Raises:
            KubeError: the record could not be written.
        """


class Notifier:
    """Notifier for one event loop.

    Args:
        settings: channels and routes.
        keeper: storage of the record.
        record: stored record. None: there was none.
        workers: workers by channel.
        metrics: metrics of the notifier.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        settings: NotificationSettings,
        *,
        keeper: RecordKeeper,
        record: SentRecord | None,
        workers: Mapping[str, ChannelWorker],
        metrics: NotifierMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._workers = workers
        self._metrics = metrics
        self._clock = clock
        self._is_first_start = record is None
        # A copy: the record given at the start stays as it was read.
        self._known: dict[str, KnownOutlook] = {} if record is None else dict(record.known)
        pending = () if record is None else record.pending
        self._pending = {message.key: message for message in pending}
        # These reach their workers only after the record is written, also after a restart.
        self._unsaved: list[PendingMessage] = list(pending)
        """Messages of `_pending` that their workers do not have yet."""
        self._jobs: dict[str, NotifiableJob] = {}
        self._known_in: Counter[str] = Counter()
        """Number of known jobs by namespace."""
        self._left_out: set[str] = set()
        """UIDs of jobs for which the record has no space."""
        self._queues: dict[str, NotifiableQueue] = {}
        self._low_budgets: dict[str, set[str]] = defaultdict(set)
        """Reported low budgets (`NotifiableQueue.low`) by UID of the queue. Budgets that are no
        longer low are removed."""
        for key in () if record is None else record.low_budgets:
            self._low_budgets[key.partition("/")[0]].add(key)
        self._is_settled = False
        self._is_dirty = True
        self._changed = asyncio.Event()
        self.problem: str | None = None
        """Error of the last write of the record. None after a successful write."""
        for name, channel in settings.channels.items():
            metrics.watch_queue(
                name,
                kind=channel.kind,
                pending=partial(self._pending_messages, name),
                oldest=partial(self._oldest_seconds, name),
            )

    def on_event(self, event: Event[NotifiableJob]) -> None:
        """Record a change of a job. The informer calls it."""
        job = event.view
        if event.change is Change.DELETED:
            # The object of a deleted job is the last chance to report how it ended.
            if self._is_settled and job.has_ended:
                self._evaluate(job)
            self._jobs.pop(job.uid, None)
            self._forget(job)
            return
        self._jobs[job.uid] = job
        if self._is_settled:
            self._evaluate(job)

    def on_queue_event(self, event: Event[NotifiableQueue]) -> None:
        """Record a change of a queue. The informer calls it."""
        queue = event.view
        if event.change is Change.DELETED:
            self._queues.pop(queue.uid, None)
            self._low_budgets.pop(queue.uid, None)
            return
        self._queues[queue.uid] = queue
        # Before the first step the record is not merged yet, so nothing may be evaluated.
        if self._is_settled:
            self._evaluate_budget(queue)

    def settled(self, message: PendingMessage) -> None:
        """Record that a message was accepted or dropped. The workers call it."""
        self._pending.pop(message.key, None)
        # The record shrinks with the next write. Until then a restart sends the message again.
        self._touch()

    async def run(self) -> None:
        """Evaluate jobs and keep the record until the task is cancelled.

        The jobs must be listed.
        """
        failures, look_at = 0, 0.0
        while True:
            try:
                # A full check every tick, and only a write between two ticks.
                if self._clock() >= look_at:
                    await self.step()
                    look_at = self._clock() + TICK_SECONDS
                else:
                    await self.save()
                failures, self.problem, pause = 0, None, TICK_SECONDS
            except KubeError as error:
                failures += 1
                self._metrics.record_failures.inc()
                # Capped at 30 s: messages wait for the record, so a long pause would delay all of
                # them.
                pause = min(_LONGEST_PAUSE_SECONDS, 2.0**failures)
                self.problem = f"the record cannot be written: {type(error).__name__}"
                log.warning("record_refused", why=str(error), again_in_seconds=pause)
                # Not the wait below: a change must not shorten the pause after a refused write.
                await asyncio.sleep(pause)
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                    # Changes of a second share one write: a gang of jobs often ends together.
                    await asyncio.sleep(SAVE_SECONDS)
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Check all jobs, write the record if it changed, and send the pending messages.

        Raises:
            KubeError: the record could not be written, so nothing was sent.
        """
        self._settle()
        # Copies, because an await may let an event change the dicts.
        for job in tuple(self._jobs.values()):
            self._evaluate(job)
        for queue in tuple(self._queues.values()):
            self._evaluate_budget(queue)
        await self.save()

    async def save(self) -> None:
        """Write the record if it changed, and send the pending messages.

        Raises:
            KubeError: the record could not be written, so nothing was sent.
        """
        # Cleared before the write: a change during the write is a reason for the next one.
        self._changed.clear()
        if self._is_dirty:
            # The flags are reset before the await, so a change during it marks the record dirty
            # again.
            fresh, self._unsaved, self._is_dirty = self._unsaved, [], False
            try:
                await self._keeper.write(self._record())
            except KubeError:
                # The messages stay unsaved after a failure, in their order.
                self._is_dirty, self._unsaved = True, [*fresh, *self._unsaved]
                raise
            log.info("record_written", jobs=len(self._known), pending=len(self._pending))
            # From here on a crash repeats a message instead of losing it.
            for message in fresh:
                self._workers[message.channel].add(message)

    def _record(self) -> SentRecord:
        return SentRecord(
            known=self._known,
            pending=list(self._pending.values()),
            low_budgets=sorted(chain.from_iterable(self._low_budgets.values())),
        )

    def _settle(self) -> None:
        """Forget deleted jobs, and messages of deleted channels, at the first step."""
        if self._is_settled:
            return
        # Jobs that were deleted while no notifier ran would stay in the record forever.
        for uid in self._known.keys() - self._jobs.keys():
            del self._known[uid]
        self._known_in = Counter(self._jobs[uid].namespace for uid in self._known)
        for uid in self._low_budgets.keys() - self._queues.keys():
            del self._low_budgets[uid]
        for message in tuple(self._unsaved):
            if message.channel not in self._workers:
                self._unsaved.remove(message)
                self._pending.pop(message.key, None)
        # Without a record, every running job would be reported as started.
        if self._is_first_start:
            now = self._clock()
            for job in self._jobs.values():
                self._remember(job, advanced(None, job, now=now)[0])
            self._low_budgets.update((uid, set(each.low)) for uid, each in self._queues.items())
        self._is_settled = True
        log.info("notifier_settled", known=len(self._known), pending=len(self._pending))

    def _evaluate(self, job: NotifiableJob) -> None:
        """Record the known state of the job, and the messages about its change."""
        now, before = self._clock(), self._known.get(job.uid)
        known, change = advanced(before, job, now=now, patience=self._settings.stuck_after.patience)
        # Only a changed outlook touches the record. Most events change only the progress.
        if known != before:
            if not self._remember(job, known):
                return
            self._touch()
        if change is not None:
            self._announce(job, change, now=now)

    def _evaluate_budget(self, queue: NotifiableQueue) -> None:
        low, known = queue.low, self._low_budgets.get(queue.uid, set[str]())
        # Equal keys: the budget neither became low nor recovered.
        if low.keys() == known:
            return
        self._touch()
        # The whole set is replaced, so a recovered budget can be reported again.
        self._low_budgets[queue.uid] = set(low)
        now = self._clock()
        for key, user in low.items():
            if key not in known:
                change = (
                    user_change(queue, user, now=now) if user else budget_change(queue, now=now)
                )
                self._send(change, choice="", now=now)

    def _remember(self, job: NotifiableJob, known: KnownOutlook) -> bool:
        if job.uid not in self._known:
            # The record is one ConfigMap of at most 1 MiB, so the number of jobs is bounded. One
            # namespace must not use all of it, or no job of another namespace would be reported.
            free = MOST_JOBS - len(self._known)
            if self._known_in[job.namespace] >= FREE_FACTOR * free:
                if job.uid not in self._left_out:
                    self._left_out.add(job.uid)
                    log.warning("job_left_out", job=f"{job.namespace}/{job.name}", free=free)
                return False
            self._known_in[job.namespace] += 1
            self._left_out.discard(job.uid)
        self._known[job.uid] = known
        return True

    def _forget(self, job: NotifiableJob) -> None:
        self._left_out.discard(job.uid)
        if self._known.pop(job.uid, None) is None:
            return
        self._known_in[job.namespace] -= 1
        if not self._known_in[job.namespace]:
            del self._known_in[job.namespace]
        self._touch()

    def _announce(self, job: NotifiableJob, change: OutlookChange, *, now: float) -> None:
        if refused := refused_choices(self._settings, job):
            where = f"{job.namespace}/{job.name}"
            log.warning("choice_refused", job=where, entries=refused)
        self._send(change, choice=job.choice, now=now)

    def _send(self, change: OutlookChange, *, choice: str, now: float) -> None:
        """Record the messages of a change. They are sent after the record is written."""
        # After a long outage, news of yesterday would only bury the news of today.
        if now - change.at > MOST_AGE_SECONDS:
            log.info("change_is_old", id=change.id, job=f"{change.namespace}/{change.name}")
            return
        for destination in destinations(self._settings, change, choice=choice):
            message = PendingMessage(
                change=change, channel=destination.channel, recipient=destination.recipient
            )
            # The same change may match a route and the job's own choice.
            if message.key in self._pending:
                continue
            # Each limit protects others: the process, the other namespaces, the other jobs.
            why = self._why_full(change)
            if why is not None:
                log.error("notification_given_up", why=why, id=change.id, channel=message.channel)
                kind = self._settings.channels[message.channel].kind
                self._metrics.channel(message.channel, kind=kind).dropped.inc()
                continue
            self._pending[message.key] = message
            self._unsaved.append(message)

    def _why_full(self, change: OutlookChange) -> str | None:
        """Return why no further message of this job or queue may be pending, or None if it may."""
        if len(self._pending) >= MOST_PENDING:
            return f"{MOST_PENDING} messages are pending"
        pending = [message.change for message in self._pending.values()]
        neighbours = sum(each.namespace == change.namespace for each in pending)
        if change.namespace and neighbours >= MOST_PENDING_OF_A_NAMESPACE:
            return f"{MOST_PENDING_OF_A_NAMESPACE} messages of the same namespace are pending"
        # Job and user: a queue's messages about different users must not displace each other.
        own = sum((each.uid, each.user) == (change.uid, change.user) for each in pending)
        if own >= MOST_PENDING_OF_A_JOB:
            return f"{MOST_PENDING_OF_A_JOB} messages of the same job are pending"
        return None

    def _pending_messages(self, channel: str) -> int:
        return sum(message.channel == channel for message in self._pending.values())

    def _oldest_seconds(self, channel: str) -> float:
        now = self._clock()
        ages = (now - each.change.at for each in self._pending.values() if each.channel == channel)
        return max([0.0, *ages])

    def _touch(self) -> None:
        self._is_dirty = True
        self._changed.set()
