"""Leader election with one coordination Lease, a monotonic clock, and an epoch that only grows.

* The holder may write until the *start* of its last good renewal + the lease's duration - one write
  deadline, on its own clock. A write that was checked then has ended, here and at the server,
  before any other process may take the lease.
* Another process takes the lease only after it has seen it unchanged for a whole duration on its
  own monotonic clock, counted from the arrival of the answer. Wall clocks are never compared.
* Every change is conditional on the resourceVersion read before. Every acquisition (never a
  renewal) raises `leaseTransitions`. That number is the epoch. It is unique to one term of one
  process, even if two processes have the same identity by mistake, or one takes its own lease back.
* Deleting the Lease does not depose its holder. A candidate that saw it before waits, and the
  holder writes it again. Only a candidate that never saw the Lease takes it at once. With
  `raise_epoch` it goes above all earlier epochs, as soon as it knows them.
* A late renewal that succeeds proves that no other process took the lease in between, so the term
  continues. The term ends when the record names another holder or another epoch.

    duration 15 s, write deadline 5 s: renewed at t = 0, the holder may write until t = 10; its last
    write has ended by t = 15; a process that last saw a change at t = 0.2 takes it at t = 15.2
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from drumline.kube.client import WRITE_DEADLINE_SECONDS, KubeClient
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.kube.lease_client import LeaseClient, LeaseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """The schedule of an election.

    Attributes:
        duration_seconds: How long an unrenewed lease is safe from others.
        renew_seconds: How often the holder renews it.
        retry_seconds: How long to wait after a failure, and between two looks at another's lease.
        request_seconds: The deadline of one request about the lease.
    """

    duration_seconds: int = 15
    renew_seconds: float = 5.0
    retry_seconds: float = 1.0
    request_seconds: float = 3.0

    def __post_init__(self) -> None:
        """Refuse schedules under which one slow renewal would close the fence."""
        # A renewal starts after `renew_seconds` and lasts `request_seconds`, before the fence
        # closes.
        needed = self.renew_seconds + self.request_seconds + WRITE_DEADLINE_SECONDS
        if self.duration_seconds < needed:
            raise ValueError(f"a lease of {self.duration_seconds} s must last {needed:g} s or more")


# Times are on this process's own monotonic clock. The Lease's wall times are for people.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """A lease that is ours: the record as last written, and when its renewal was begun."""

    record: LeaseRecord
    renewed_at: float


class LeaderElector:
    """One candidate for one Lease.

    Args:
        client: The client to send with; its fence is not asked for the lease itself.
        namespace: Where the Lease is.
        name: Its name.
        identity: The holder's name in the Lease, for people; should be unique to this process.
        timing: The schedule.
        clock: A monotonic clock.
        wall: The time of day, written for people and never compared.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._timing = timing or LeaseTiming()
        self._lease = LeaseClient(
            client=client,
            namespace=namespace,
            name=name,
            request_seconds=self._timing.request_seconds,
        )
        self._identity = identity
        self._clock = clock
        self._wall = wall
        self._term: _Term | None = None
        # `hold` and `raise_epoch` may overlap. Each must use the version that the other has
        # written.
        self._renewing = asyncio.Lock()
        self._seen_version: str | None = None
        self._seen_at = -math.inf

    @property
    def is_leader(self) -> bool:
        """Return whether a write sent now is safe."""
        if self._term is None:
            return False
        # The deadline is subtracted because a write may leave now and take effect 5 s later.
        safe_seconds = self._timing.duration_seconds - WRITE_DEADLINE_SECONDS
        return self._clock() <= self._term.renewed_at + safe_seconds

    @property
    def epoch(self) -> int:
        """The number of this term; 0 outside one. Grows with every term of any process."""
        return 0 if self._term is None else self._term.record.epoch

    def check(self) -> None:
        """Check the fence of `KubeClient`.

        Raises:
            NotLeader: a write sent now would not be safe.
        """
        # This runs before every write, without I/O: a Lease read per write would double the load.
        if not self.is_leader:
            raise NotLeader(f"{self._identity} cannot prove that it holds {self._lease.name}")

    async def acquire(self) -> int:
        """Wait until this process leads; returns the epoch of its term."""
        while True:
            if await self.try_acquire():
                return self.epoch
            await asyncio.sleep(self._timing.retry_seconds)

    async def hold(self) -> None:
        """Renew the lease for as long as it is ours. To be run throughout the term.

        Raises:
            NotLeader: The term is over: another process, or another term, holds the lease.
        """
        while True:
            renewed = await self.try_renew()
            timing = self._timing
            await asyncio.sleep(timing.renew_seconds if renewed else timing.retry_seconds)

    async def try_acquire(self) -> bool:
        """Take the lease if it is free, or unchanged for its duration.

        Returns:
            Whether the lease is ours now. An unreachable server means no.
        """
        try:
            stored = await self._lease.read()
            # The read comes first, so that the version of the write is the one that was judged.
            return await self._take(stored) if self._is_free(stored) else False
        except KubeError:
            # A failed attempt is not an error: the candidate tries again after `retry_seconds`.
            return False

    async def try_renew(self) -> bool:
        """Renew the lease once.

        Returns:
            Whether it succeeded. After False the term may still continue.

        Raises:
            NotLeader: the term is over.
        """
        async with self._renewing:
            term = self._held_term()
            try:
                # The renewal sends the known version, so a taken lease answers 409 instead of being
                # overwritten.
                await self._write(replace(term.record, renew_time=self._now()))
            except (Conflict, NotFound):
                # Perhaps an earlier renewal of our own, whose answer was lost.
                await self._recover(term)
                return False
            except KubeError:
                # No answer: the term is still safe until its own clock runs out.
                return False
            return True

    async def raise_epoch(self, *, above: int) -> int:
        """Make the epoch of this term higher than `above`, before anything is written in it.

        A Lease that someone deleted, or wrote by hand, counts from a lower number on.

        Args:
            above: The highest epoch known from elsewhere.

        Returns:
            The epoch of the term; as it was where it is higher already.

        Raises:
            NotLeader: The term is over.
            KubeError: It could not be written: this term is not to be used.
        """
        async with self._renewing:
            term = self._held_term()
            # A write is needed only if the number is too low. Otherwise the call costs nothing.
            if term.record.epoch <= above:
                await self._write(replace(term.record, epoch=above + 1, renew_time=self._now()))
            return self.epoch

    async def release(self) -> None:
        """Give the lease back, so that the next leader need not wait. Best effort.

        The fence closes first; writes sent before must have ended when this is called.
        """
        # The term ends before the Lease is freed. The other order would allow two writers.
        term, self._term = self._term, None
        if term is not None:
            with suppress(KubeError):
                # An empty holder lets a standby take it at its next look, after at most
                # `retry_seconds`.
                await self._lease.write(replace(term.record, holder="", renew_time=self._now()))

    def _held_term(self) -> _Term:
        if self._term is None:
            raise NotLeader(
                f"{self._identity} does not lead: it holds no term of {self._lease.name}"
            )
        return self._term

    def _is_free(self, stored: LeaseRecord | None) -> bool:
        if stored is None and self._seen_version is None:
            return True
        # A released lease needs no wait: its last holder has closed its own fence.
        if stored is not None and not stored.holder:
            return True
        # A Lease that someone deleted under its holder is left alone as long as a held one.
        version = "" if stored is None else stored.resource_version
        if version != self._seen_version:
            self._seen_version = version
            # The candidate's own clock starts at each change. Skewed wall clocks cannot shorten the
            # wait.
            self._seen_at = self._clock()
        theirs = 0 if stored is None else stored.duration_seconds
        # A holder with a longer duration than ours is honoured, for example during an upgrade.
        return self._clock() >= self._seen_at + max(theirs, self._timing.duration_seconds)

    async def _take(self, stored: LeaseRecord | None) -> bool:
        before = 0 if stored is None else stored.epoch
        now = self._now()
        await self._write(
            LeaseRecord(
                holder=self._identity,
                epoch=before + 1,
                duration_seconds=self._timing.duration_seconds,
                acquire_time=now,
                renew_time=now,
                resource_version="" if stored is None else stored.resource_version,
            )
        )
        return True

    async def _write(self, record: LeaseRecord) -> None:
        # The start of the request, not its end: the server may have stored it at any time between.
        started = self._clock()
        version = await self._lease.write(record)
        self._term = _Term(record=replace(record, resource_version=version), renewed_at=started)

    async def _recover(self, term: _Term) -> None:
        try:
            stored = await self._lease.read()
        except KubeError:
            return
        ours = term.record
        # Holder and epoch together: two processes with one identity still differ in the epoch.
        if stored is None or (stored.holder, stored.epoch) != (ours.holder, ours.epoch):
            self._term = None
            holder = (stored.holder if stored is not None else "") or "no process"
            raise NotLeader(f"{self._lease.name} is now held by {holder}")
        # The record is ours, but its renewal time is unknown: only the next renewal counts.
        known = replace(ours, resource_version=stored.resource_version)
        self._term = replace(term, record=known)

    def _now(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
