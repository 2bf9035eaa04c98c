"""Read single objects and whole lists. Items stay bytes until a decoder of `codec` reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from drumline.kube.client import KubeClient
from drumline.kube.errors import Gone, Malformed, TooLarge
from drumline.kube.kinds import SELF_SUBJECT_REVIEWS, Resource
from drumline.kube.request import ORDINARY, Request, Sending, Verb

# The page size of kubectl and client-go. The API server decodes one page at a time.
PAGE_LIMIT: Final = 500
MOST_PAGE_BYTES: Final = 16 << 20
"""Most bytes of a page of several objects.

A tenant may make each object as large as etcd allows. A page that is too large is requested again
with fewer objects, and the pages after it become longer again.
"""
_FEWER: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some items of a list, not decoded yet, and the version of the whole list."""

    items: tuple[bytes, ...]
    resource_version: str


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_token: str = msgspec.field(default="", name="continue")


# Raw items: the whole page is split without decoding a single object.
class _List(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw] = []


_decode_list = msgspec.json.Decoder(_List).decode


async def get(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    namespace: str | None = None,
    sending: Sending = ORDINARY,
) -> bytes:
    """Return the object's JSON from storage, for a decoder of `codec`.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        namespace: namespace of the object. None: a cluster-scoped kind.
        sending: retries and time limits.

    Raises:
        NotFound: the object does not exist.
        KubeError: any other failure.
    """
    path = resource.path(namespace=namespace, name=name)
    request = Request(verb=Verb.GET, resource=resource, path=path, sending=sending)
    return await client.send(request)


async def get_document(
    client: KubeClient, resource: Resource, *, name: str, namespace: str | None = None
) -> dict[str, Any]:
    """Return an object as a mapping with a name.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        namespace: namespace of the object. None: a cluster-scoped kind.

    Raises:
        NotFound: the object does not exist.
        Malformed: the answer is not an object, such as the page of a proxy.
        KubeError: any other failure.
    """
    parsed = document(await get(client, resource, name=name, namespace=namespace))
    metadata = parsed.get("metadata")
    if not isinstance(metadata, dict) or "name" not in metadata:
        raise Malformed("the answer is not an object of Kubernetes")
    return parsed


def document(raw: bytes) -> dict[str, Any]:
    """Return JSON as a mapping. Content nested deeper than `nesting.KEPT_LEVELS` becomes 0.

    Raises:
        Malformed: it is not a JSON object.
    """
    try:
        try:
            decoded: object = msgspec.json.decode(raw)
        except RecursionError:
            from drumline.kube.nesting import flattened  # noqa: PLC0415 - numpy, 0.2 s for nobody

            decoded = msgspec.json.decode(flattened(raw))
    except msgspec.MsgspecError as error:
        raise Malformed(f"an answer of {len(raw)} bytes: {error}") from error
    if not isinstance(decoded, dict):
        raise Malformed(f"an answer of {len(raw)} bytes is not a JSON object")
    return cast("dict[str, Any]", decoded)


class _ReviewedMetadata(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: str = ""


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class _ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _UserInfo = _UserInfo()


class SelfReview(msgspec.Struct, frozen=True):
    """A SelfSubjectReview of the API server: the caller's user name."""

    metadata: _ReviewedMetadata = _ReviewedMetadata()
    status: _ReviewStatus = _ReviewStatus()

    @property
    def username(self) -> str:
        """Empty where the server does not say."""
        return self.status.user_info.username

    @property
    def created(self) -> str:
        """The API server's time, RFC 3339."""
        return self.metadata.creation_timestamp


async def self_review(client: KubeClient) -> SelfReview:
    """Ask the API server who the client is; every authenticated user may.

    Raises:
        Unauthorized: The credentials are not accepted.
        KubeError: Anything else.
    """
    # SelfSubjectReview needs no RBAC since Kubernetes 1.28: every authenticated user may create
    # one.
    kind = SELF_SUBJECT_REVIEWS
    review = {"apiVersion": kind.api_version, "kind": kind.kind}
    answer = await client.send(
        Request(verb=Verb.CREATE, resource=kind, path=kind.path(), body=msgspec.json.encode(review))
    )
    try:
        return msgspec.json.decode(answer, type=SelfReview)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error


async def list_pages(
    client: KubeClient,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str = "",
    field_selector: str = "",
    limit: int = PAGE_LIMIT,
) -> AsyncGenerator[Page]:
    """Yield all objects of one version, page by page. Without a namespace, read all namespaces.

    The API server writes the next page while the caller reads one, so memory holds two pages.

    Args:
        client: sends the requests.
        resource: the kind.
        namespace: None means all namespaces.
        label_selector: as in kubectl. Empty: all.
        field_selector: as in kubectl. Empty: all.
        limit: objects in a page.

    Raises:
        Gone: The version was compacted between two pages: what came so far is to be thrown away.
        KubeError: Anything else.
    """
    path = resource.path(namespace=namespace)
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    # Continue tokens carry the version of the first page, so all pages show one state.
    query = {name: value for name, value in selectors.items() if value}

    def ask(after: str, most: int) -> asyncio.Task[bytes]:
        rest = query | {"limit": str(most)} | ({"continue": after} if after else {})
        # One object has no smaller page, so it is read whatever its size.
        most_bytes = MOST_PAGE_BYTES if most > 1 else None
        request = Request(
            verb=Verb.LIST, resource=resource, path=path, query=rest, most_bytes=most_bytes
        )
        return asyncio.create_task(client.send(request))

    # The first request starts before the loop, so each round awaits the page that is under way.
    after, most = "", limit
    answer = ask(after, most)
    try:
        while True:
            try:
                page = _parse(await answer)
            except TooLarge:
                most = max(1, most // _FEWER)
                answer = ask(after, most)
                continue
            most = min(limit, 2 * most)
            # Prefetch: the next page is in flight while the caller decodes this one.
            if page.metadata.next_token:
                after = page.metadata.next_token
                answer = ask(after, most)
                await asyncio.sleep(0)  # the request leaves before the caller takes the loop
            yield _page(page)
            if not page.metadata.next_token:
                return
    # An abandoned request would log an exception that no task retrieved.
    finally:  # the caller may have seen enough
        answer.cancel()
        await asyncio.wait([answer])


async def first_page(
    client: KubeClient, resource: Resource, *, namespace: str, field_selector: str, limit: int
) -> Page:
    """Return at most `limit` objects of a namespace that match the selector.

    Args:
        client: sends the requests.
        resource: the kind.
        namespace: namespace to read.
        field_selector: as in kubectl.
        limit: largest number of objects.

    Raises:
        KubeError: They could not be read.
    """
    # `limit` bounds the answer, but a field selector still makes the server scan the namespace.
    query = {"fieldSelector": field_selector, "limit": str(limit)}
    path = resource.path(namespace=namespace)
    answer = await client.send(Request(verb=Verb.LIST, resource=resource, path=path, query=query))
    return _page(_parse(answer))


async def newest_version(
    client: KubeClient, resource: Resource, *, namespace: str | None, query: Mapping[str, str]
) -> str:
    """Return a version that is not older than any write answered before the call.

    It is a consistent read of a single object. The API server confirms with etcd that nothing is
    newer, and its watch cache learns the version from that (KEP-2340).

    Args:
        client: client to read with.
        resource: the kind.
        namespace: only this namespace. None means all.
        query: the selectors.

    Raises:
        KubeError: it could not be read.
    """
    # Without `resourceVersion` the read is consistent. `resourceVersion=0` would allow a stale
    # cache.
    path = resource.path(namespace=namespace)
    request = Request(verb=Verb.LIST, resource=resource, path=path, query={**query, "limit": "1"})
    return _parse(await client.send(request)).metadata.resource_version


async def list_all(
    client: KubeClient,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str = "",
    field_selector: str = "",
) -> list[bytes]:
    """Return all objects of one version, undecoded. Start again if the version is compacted.

    Args:
        client: sends the requests.
        resource: the kind.
        namespace: None means all namespaces.
        label_selector: as in kubectl. Empty: all.
        field_selector: as in kubectl. Empty: all.

    Raises:
        KubeError: The list could not be read.
    """
    while True:
        # A list that outlives a compaction starts again: its pages would show two states.
        try:
            return [
                item
                async for page in list_pages(
                    client,
                    resource,
                    namespace=namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                )
                for item in page.items
            ]
        except Gone:
            continue


def _page(page: _List) -> Page:
    return Page(
        items=tuple(map(bytes, page.items)), resource_version=page.metadata.resource_version
    )


def _parse(answer: bytes) -> _List:
    try:
        try:
            return _decode_list(answer)
        except RecursionError:  # even what is skipped is walked through
            from drumline.kube.nesting import flattened  # noqa: PLC0415 - numpy, 0.2 s for nobody

            return _decode_list(flattened(answer))
    except msgspec.MsgspecError as error:
        raise Malformed(f"a list of {len(answer)} bytes: {error}") from error
