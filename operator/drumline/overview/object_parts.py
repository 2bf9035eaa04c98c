"""What all objects of the API server have in common here: they are read as far as rows need them.

Every text in them is foreign: a tenant may write most of them.
"""

from __future__ import annotations

import msgspec


class ObjectPart(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A part of an object; unknown fields are skipped."""


class ObjectMetadata(ObjectPart, frozen=True, rename="camel", gc=False):
    """What every object has."""

    name: str
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
