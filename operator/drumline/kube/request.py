"""One request to the API server, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from drumline.kube.kinds import Resource
from drumline.kube.retry import RetryPolicy

JSON: Final = "application/json"


class Verb(StrEnum):
    """Operation of a request, named as in RBAC and in the write metrics."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"
    DELETE_COLLECTION = "deletecollection"


# The API has more verbs than HTTP: a list is a GET of a collection.
_METHODS: Final[Mapping[Verb, str]] = {
    Verb.GET: "GET",
    Verb.LIST: "GET",
    Verb.WATCH: "GET",
    Verb.CREATE: "POST",
    Verb.UPDATE: "PUT",
    Verb.PATCH: "PATCH",
    Verb.DELETE: "DELETE",
    Verb.DELETE_COLLECTION: "DELETE",
}
_READS: Final = frozenset({Verb.GET, Verb.LIST, Verb.WATCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Options for sending a request.

    Attributes:
        fenced: whether a write needs the fence. Only writes of the lease do not.
        retry: replaces the client's own policy.
        deadline_seconds: replaces the client's own deadline for reads or writes.
        purpose: purpose in the User-Agent, which the server's logs and audit show.
    """

    fenced: bool = True
    retry: RetryPolicy | None = None
    deadline_seconds: float | None = None
    purpose: str = ""


ORDINARY: Final = Sending()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to the API server.

    Attributes:
        verb: What it does.
        resource: The kind of object it is about.
        path: Where, below the server's root; `Resource.path` builds it.
        query: The query parameters.
        body: What is sent, encoded.
        content_type: What the body is.
        sending: How to send it, where that is out of the ordinary.
        most_bytes: Most bytes of the answer. None: any number.
    """

    verb: Verb
    resource: Resource
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    # Bytes, so that a retry sends exactly the same body.
    body: bytes | None = None
    content_type: str = JSON
    sending: Sending = ORDINARY
    most_bytes: int | None = None

    @property
    def reads(self) -> bool:
        """Return whether it changes nothing."""
        return self.verb in _READS

    @property
    def namespace(self) -> str:
        """The namespace of the object, or '' of a cluster-scoped kind."""
        return self.path.partition("/namespaces/")[2].partition("/")[0]

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS[self.verb]
