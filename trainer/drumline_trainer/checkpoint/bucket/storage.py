"""A prefix of a bucket as the storage of checkpoints; see the package for how."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_contract.buckets.objects import ConflictError, ObjectBucket, StoredObject
from drumline_trainer.checkpoint.bucket.files import BucketFiles
from drumline_trainer.checkpoint.bucket.index import INDEX_FILE, MAX_INDEX_BYTES, PLACE, Index
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StaleMembershipError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.lease import LEASE_FILE, MAX_LEASE_BYTES
from drumline_trainer.checkpoint.ownership import Membership, Owner
from drumline_trainer.checkpoint.retention import outdated
from drumline_trainer.checkpoint.storage import StepFiles

_ATTEMPTS: Final = 8
"""Attempts to change the index. A new attempt needs a change by another writer, or a store that
was lost for minutes."""
_NO_VERSION: Final = {"e_tag": '"drumline"', "version": "1"}
"""A version that no object has. Real ones are a hash of 128 bits, or a time in microseconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """A lease in a bucket."""

    bucket: ObjectBucket

    def read(self) -> bytes | None:
        """See `LeasePlace`."""
        stored = self.bucket.get(LEASE_FILE, limit=MAX_LEASE_BYTES)
        return None if stored is None else stored.body

    def write(self, body: bytes) -> None:
        """See `LeasePlace`."""
        self.bucket.put(LEASE_FILE, body)

    def remove(self) -> None:
        """See `LeasePlace`."""
        self.bucket.delete(LEASE_FILE)


class BucketStorage:
    """A `CheckpointStorage`.

    Args:
        bucket: the bucket, with its prefix.
        owner: job, generation and attempt that write.
        claim: name of this claim, unique for each attempt.
    """

    def __init__(self, bucket: ObjectBucket, *, owner: Owner, claim: str) -> None:
        self._bucket = bucket
        self._own = owner
        self.lease = LeaseObject(bucket)
        self._claim = claim
        self._saves = 0
        self._in_doubt: set[str] = set()
        """Places in whose commit the index was put, and may have arrived, or arrive yet."""

    @classmethod
    def open(cls, url: str, *, owner: Owner, claim: str) -> BucketStorage:
        """Open the storage for one membership.

        Args:
            url: URL of the prefix.
            owner: the job and its membership.
            claim: unique id of this claim, part of the names of everything it writes.

        Raises:
            CheckpointError: see `ObjectBucket`.
        """
        try:
            return cls(ObjectBucket(url), owner=owner, claim=claim)
        except OSError as error:
            raise CheckpointError(str(error)) from None

    @property
    def where(self) -> str:
        """The URL."""
        return self._bucket.url

    @property
    def owner(self) -> str:
        """See `CheckpointStorage`."""
        return self._own.name

    @property
    def membership(self) -> Membership:
        """See `CheckpointStorage`."""
        return self._own.membership

    @property
    def is_cached_by_nodes(self) -> bool:
        """Every range is a request."""
        return False

    def known_owner(self) -> Owner | None:
        """See `CheckpointStorage`."""
        index, _ = self._read()
        return None if index is None else index.owner

    def claim(self, *, seen: Owner | None = None) -> None:
        """Become the owner, and delete every place that the index does not name.

        The places are listed before the claim. A listed place without a name in the index never
        gets one, because its writer has lost the index. Places of a later owner are not in the
        list.

        Raises:
            CheckpointError: a later membership owns the storage, or the store fails.
            CorruptCheckpointError: there are places but no index.
        """
        listed: list[str] = []

        def claimed(known: Index | None) -> Index:
            listed[:] = [place for place in self._bucket.places() if PLACE.fullmatch(place)]
            if known is None and listed:
                raise CorruptCheckpointError(
                    f"{self.where} holds {listed[0]}/ and no {INDEX_FILE}, which says what of it is"
                    " whole: restore that object, or name an empty prefix"
                )
            known = known or Index(owner=self._own)
            taken_by_another = seen is not None and known.owner.name != seen.name
            self._own.refuse_if_replaced(
                known.owner, where=self.where, ignore_other_jobs=not taken_by_another
            )
            return known.owned_by(self._own)

        # From here on, earlier owners cannot commit: deleting what they wrote is safe.
        index = self._change(claimed)
        self._refuse_store_without_conditions()
        for place in set(listed) - set(index.places.values()):
            self._delete(place)

    def steps(self) -> list[int]:
        """See `CheckpointStorage`. Raises CorruptCheckpointError, OSError."""
        index, _ = self._read()
        return [] if index is None else index.steps

    def committed(self, step: int) -> BucketFiles:
        """See `CheckpointStorage`.

        Raises:
            CorruptCheckpointError: the index does not name the step.
        """
        index, _ = self._read()
        if index is None or step not in index.places:
            raise CorruptCheckpointError(f"{self.where}/{INDEX_FILE} does not name step {step}")
        return self.at(index.places[step])

    def at(self, place: str) -> BucketFiles:
        """See `CheckpointStorage`."""
        return BucketFiles(bucket=self._bucket, place=place)

    def begin(self, step: int) -> BucketFiles:
        """Return a place that was never written to, so no save damages another one."""
        self._saves += 1
        return self.at(f"step-{step:08d}.{self._claim}.{self._saves}")

    def commit(self, step: int, *, files: StepFiles) -> None:
        """Name the place in the index by one conditional put."""
        before: list[str] = []

        def committed(known: Index | None) -> Index:
            index = self._still_ours(known)
            before[:] = [index.places[step]] if step in index.places else []
            # Noted before the put: its answer may be lost although the store has done it.
            self._in_doubt.add(files.place)
            return index.with_step(step, files.place)

        index = self._change(committed)
        # no earlier put is done any more, as it was on the condition of an earlier index
        for place in {*before, *self._in_doubt}.difference(index.places.values()):
            self._delete(place)
        self._in_doubt.clear()

    def ownership_error(self) -> StaleMembershipError | None:
        """See `CheckpointStorage`."""
        try:
            self._still_ours(self._read()[0])
        except StaleMembershipError as error:
            return error
        except (CorruptCheckpointError, OSError):
            pass
        return None

    def discard(self, files: StepFiles) -> None:
        """See `CheckpointStorage`; what the index may name stays until the next commit or claim."""
        if files.place not in self._in_doubt:
            self._delete(files.place)

    def prune(self, *, keep: int, verified: Sequence[int], spared: int | None = None) -> None:
        """Remove names before objects: what is half deleted does not look like a step."""
        removed: list[str] = []

        def pruned(known: Index | None) -> Index:
            index = self._still_ours(known)
            steps = outdated(index.steps, keep=keep, verified=verified, spared=spared)
            # Set anew on each try: the index may have changed since the last one.
            removed[:] = [index.places[step] for step in steps]
            return index.without(steps)

        try:
            if outdated(self.steps(), keep=keep, verified=verified, spared=spared):
                self._change(pruned)
        except (StaleMembershipError, CorruptCheckpointError):
            return
        except OSError as error:
            logger.warning("older checkpoints stay: %s", error)
            return
        for place in removed:
            self._delete(place)

    def _still_ours(self, known: Index | None) -> Index:
        if known is None:
            raise CheckpointError(f"{self.where}/{INDEX_FILE} was deleted while a job trains there")
        self._own.refuse_if_replaced(known.owner, where=self.where)
        return known

    def _change(self, change: Callable[[Index | None], Index]) -> Index:
        """Read the index, change it and put it if it is still the one that was read.

        The index names each change, so it shows whether a put without a reply succeeded. Until
        that is known, the same bytes are put again, so it does not matter which put arrives.

        Raises:
            OSError: the store refuses, or was lost for longer than all attempts took.
            Exception: `change` raised it. Nothing was written.
        """
        name = secrets.token_hex(8)
        for attempt in range(1, _ATTEMPTS + 1):
            known, stored = self._read()
            after = change(known)
            body = after.encode(change=name)
            try:
                version = None if stored is None else stored.version
                self._bucket.put_if(INDEX_FILE, body, version=version)
            except ConflictError:
                pass
            except OSError as error:
                if not is_storage_fault(error) or attempt == _ATTEMPTS:
                    raise
            else:
                return after
            # A put whose answer was lost may have been done: then the index is this very change.
            now = self._bucket.get(INDEX_FILE, limit=MAX_INDEX_BYTES)
            if now is not None and now.body == body:
                return after
        raise CheckpointError(f"{self.where}/{INDEX_FILE} is changed by others all the time")

    def _refuse_store_without_conditions(self) -> None:
        """Raise CheckpointError where the store does not keep what all of this rests on.

        Two puts that have to be refused; where one is done it writes what was there.
        """
        stored = self._bucket.get(INDEX_FILE, limit=MAX_INDEX_BYTES)
        if stored is None:
            raise CheckpointError(f"{self.where}/{INDEX_FILE} is gone as soon as it was written")
        for condition, version in (("If-None-Match", None), ("If-Match", _NO_VERSION)):
            try:
                self._bucket.put_if(INDEX_FILE, stored.body, version=version)
            except ConflictError:
                continue
            raise CheckpointError(
                f"{self.where}: the store ignores {condition} of a put, so that two runs could"
                " commit at once: use one with conditional writes"
            )

    def _read(self) -> tuple[Index | None, StoredObject | None]:
        stored = self._bucket.get(INDEX_FILE, limit=MAX_INDEX_BYTES)
        return (None if stored is None else Index.parse(stored.body, where=self.where)), stored

    def _delete(self, place: str) -> None:
        try:
            self._bucket.delete_place(place)
        except OSError as error:  # the next claim deletes it
            logger.warning("what is left of a checkpoint stays for now: %s", error)
