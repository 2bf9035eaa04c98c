"""Define the parts that objects of all kinds share. Unknown fields are skipped unparsed.

Every text is untrusted: a tenant may write most of them. A field that Go may write as null is
optional.
"""

from __future__ import annotations

import msgspec


class ObjectPart(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A part of a stored object.

    gc=False: no part refers back to its object, and 40,000 of them must not lengthen the pauses of
    the garbage collector.
    """


class ObjectMetadata(ObjectPart, frozen=True):
    """Metadata for lists of objects."""

    name: str
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None

    def label(self, name: str) -> str:
        """Return the value of a label, empty if the object does not have it."""
        return (self.labels or {}).get(name, "")


class OwnerReference(ObjectPart, frozen=True):
    """One of metadata.ownerReferences."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Metadata(ObjectMetadata, frozen=True):
    """All metadata that is read.

    Annotations can be large: kubectl stores a copy of the spec there.
    """

    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
