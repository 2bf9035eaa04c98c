"""The newest generation record that this agent has accepted.

Only the operator makes records. Agents forward them unchanged with their signature, so a record may
arrive from any agent. It is accepted if its signature fits the job's token, it is for this job, its
generation is higher than the current one, and it names this pod's uid at this pod's index.

A new leader of the operator pushes the membership it observes under its own epoch. A record of the
current generation with the same members is therefore known already. The ranks continue, and the
first record is still the one that is forwarded, so that all members have the same bytes. Only the
epoch rises, and a later push by a deposed leader is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.events import AgentEvent, log
from drumline_contract import ContractError, GenerationRecord, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRecord:
    """A record with the bytes it arrived in, so that it can be passed on."""

    record: GenerationRecord
    body: bytes
    signature: str

    @property
    def generation(self) -> int:
        """The record's generation."""
        return self.record.generation


@dataclass(frozen=True, slots=True)
class RecordAccepted:
    """The record is the current one, now or already before."""


@dataclass(frozen=True, slots=True)
class RecordRejected:
    """The record was rejected."""

    status: HTTPStatus
    reason: str


class RecordStore:
    """Holds the current record; `wait_for_newer` waits for the next one.

    Args:
        token: the job's token, which verifies records.
        job_uid: the job's uid.
        pod_uid: uid of this pod.
        index: index of this pod's member.
        lowest_generation: generation that created this pod.
    """

    def __init__(
        self, *, token: bytes, job_uid: str, pod_uid: str, index: int, lowest_generation: int
    ) -> None:
        self._token = token
        self._job_uid = job_uid
        self._pod_uid = pod_uid
        self._index = index
        self._rejected_up_to = lowest_generation - 1
        self._epoch = 0
        self._notifier = ChangeNotifier()
        self.current: SignedRecord | None = None
        self.on_newer: Callable[[], None] = lambda: None
        """Called when a record of a higher generation has become the current one."""
        self.successor = 0
        """A higher generation that has another pod at this index; 0: none is known."""

    @property
    def generation(self) -> int:
        """Every record up to this generation is rejected."""
        return self._rejected_up_to if self.current is None else self.current.generation

    def offer(self, body: bytes, *, signature: str) -> RecordAccepted | RecordRejected:
        """Check a record from the network, and make it current if it is newer."""
        # 1. Authenticity before parsing: only the operator knows how to sign.
        if not verify(self._token, signature, b"record", body):
            return RecordRejected(HTTPStatus.UNAUTHORIZED, "wrong signature")
        try:
            record = GenerationRecord.parse(body)
        except ContractError as error:
            return RecordRejected(HTTPStatus.BAD_REQUEST, str(error))
        # 2. Every member passes records on, so most are known already.
        if self.current is not None and body == self.current.body:
            return RecordAccepted()
        # 3. Order: a lower generation or epoch comes from a deposed leader.
        rejection = self._rejection(record)
        if rejection is not None:
            log(AgentEvent.RECORD_REFUSED, generation=record.generation, reason=rejection.reason)
            return rejection
        self._epoch = record.epoch
        # The same membership under a new epoch: the bytes that others have stay the first ones.
        if self._is_current(record):
            return RecordAccepted()
        self.current = SignedRecord(record=record, body=body, signature=signature)
        log(
            AgentEvent.RECORD_ACCEPTED,
            generation=record.generation,
            epoch=record.epoch,
            members=len(record.members),
            world_size=record.world_size,
        )
        # 4. React before waiters wake up, so that they see the new state.
        self.on_newer()
        self._notifier.notify()
        return RecordAccepted()

    async def wait_for_newer(self, generation: int) -> SignedRecord:
        """Wait for a record of a higher generation than this one."""

        def newer() -> SignedRecord | None:
            known = self.current
            return known if known is not None and known.generation > generation else None

        return await self._notifier.wait_for(newer)

    async def wait_until_replaced(self) -> int:
        """Wait for a generation that this pod is no longer a member of. Returns it."""
        return await self._notifier.wait_for(lambda: self.successor or None)

    def _rejection(self, record: GenerationRecord) -> RecordRejected | None:
        if record.job_uid != self._job_uid:
            return RecordRejected(HTTPStatus.FORBIDDEN, "record of another job")
        if self._is_current(record):
            return self._epoch_rejection(record.epoch)
        if record.generation <= self.generation:
            return RecordRejected(
                HTTPStatus.CONFLICT,
                f"generation {record.generation} is not above {self.generation}",
            )
        here = [member for member in record.members if member.index == self._index]
        if not here or here[0].pod_uid != self._pod_uid:
            if self.current is not None:
                self.successor = record.generation
                self._notifier.notify()
            return RecordRejected(
                HTTPStatus.CONFLICT, f"pod {self._pod_uid} is not member {self._index} of it"
            )
        return None

    def _is_current(self, record: GenerationRecord) -> bool:
        """Return whether it is of the current membership. Epoch and restore point may differ."""
        if self.current is None:
            return False
        known = self.current.record
        return (record.generation, record.members) == (known.generation, known.members)

    def _epoch_rejection(self, epoch: int) -> RecordRejected | None:
        if epoch >= self._epoch:
            return None
        return RecordRejected(HTTPStatus.CONFLICT, f"epoch {epoch} is below {self._epoch}")
