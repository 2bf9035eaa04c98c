"""The Lease object as a value, read and written in single attempts outside the fence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Malformed, NotFound
from drumline.kube.kinds import LEASES
from drumline.kube.request import Sending
from drumline.kube.retry import ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Content of a Lease.

    Attributes:
        holder: identity of its holder. Empty while it is free.
        epoch: `leaseTransitions`, the number of acquisitions.
        duration_seconds: time for which the holder need not renew it.
        acquire_time: time of its acquisition (RFC 3339), for users.
        renew_time: time of its last renewal (RFC 3339), for users.
        resource_version: its version. Empty for a Lease that does not exist yet.
    """

    holder: str
    epoch: int
    duration_seconds: int
    acquire_time: str
    renew_time: str
    resource_version: str


class _LeaseMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


# All fields are optional in the API: a Lease that an administrator made may be empty.
class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


_BLANK: Final = _Spec()


class _Lease(msgspec.Struct, frozen=True):
    metadata: _LeaseMetadata
    spec: _Spec = _BLANK


_decode: Final = msgspec.json.Decoder(_Lease).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClient:
    """Reads and writes one Lease.

    Attributes:
        client: The client to send with.
        namespace: Where the Lease is.
        name: Its name.
        request_seconds: The deadline of each request.
    """

    client: KubeClient
    namespace: str
    name: str
    request_seconds: float

    async def read(self) -> LeaseRecord | None:
        """Return the stored Lease, or None if it does not exist.

        Raises:
            KubeError: it could not be read.
        """
        try:
            answer = await reads.get(
                self.client,
                LEASES,
                namespace=self.namespace,
                name=self.name,
                sending=self._sending(),
            )
            return _record(_decode(answer))
        except NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise Malformed(f"lease {self.name}: {error}") from error

    async def write(self, record: LeaseRecord) -> str:
        """Store the Lease if it still is at the record's version; returns the new version.

        Raises:
            AlreadyExists: Another process created it.
            Conflict: Another process changed it.
            KubeError: It could not be written, or the answer was lost.
        """
        body = _body(record, namespace=self.namespace, name=self.name)
        # An update needs the version. A create needs none: the name itself is the precondition.
        if record.resource_version:
            written = await writes.replace(
                self.client,
                LEASES,
                namespace=self.namespace,
                name=self.name,
                body=body,
                sending=self._sending(),
            )
        else:
            written = await writes.create(
                self.client,
                LEASES,
                namespace=self.namespace,
                body=body,
                sending=self._sending(),
            )
        return written.resource_version

    def _sending(self) -> Sending:
        return Sending(
            # The fence depends on this write, so it cannot wait for the fence.
            fenced=False,
            # A retry inside the client would blur the start of the renewal, on which the term
            # depends.
            retry=ONCE,
            deadline_seconds=self.request_seconds,
            purpose="leader-election",  # as kube-scheduler and kube-controller-manager call it
        )


def _record(lease: _Lease) -> LeaseRecord:
    spec = lease.spec
    return LeaseRecord(
        holder=spec.holder_identity or "",
        epoch=spec.lease_transitions or 0,
        duration_seconds=spec.lease_duration_seconds or 0,
        acquire_time=spec.acquire_time or "",
        renew_time=spec.renew_time or "",
        resource_version=lease.metadata.resource_version,
    )


def _body(record: LeaseRecord, *, namespace: str, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    if record.resource_version:
        metadata["resourceVersion"] = record.resource_version
    return {
        "metadata": metadata,
        "spec": {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration_seconds,
            "leaseTransitions": record.epoch,
            "acquireTime": record.acquire_time,
            "renewTime": record.renew_time,
        },
    }
