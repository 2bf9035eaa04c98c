"""The writes of Drumline, one function each. Only uid and version of an answer are read.

Bodies are mappings, or bytes if the caller renders once and sends often. Callers give deterministic
names, so a create that is repeated after a lost answer ends in `AlreadyExists`. Then read the
object, and accept it as your own if its owner's uid matches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from drumline.kube.client import KubeClient
from drumline.kube.errors import KubeError, Malformed
from drumline.kube.kinds import PODS, Resource
from drumline.kube.nesting import flattened
from drumline.kube.request import JSON, ORDINARY, Request, Sending, Verb
from drumline.kube.retry import ONCE

# Bytes let a caller render a pod template once for thousands of pods.
Body = Mapping[str, Any] | bytes
_MERGE_PATCH: Final = "application/merge-patch+json"
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_encode = msgspec.json.Encoder().encode


class Written(NamedTuple):
    """The identity of an object after a write, to be met again in the informer's cache."""

    uid: str
    resource_version: str


class _WrittenMetadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _WrittenMetadata


_decode_written = msgspec.json.Decoder(_Object).decode


async def create(
    client: KubeClient,
    resource: Resource,
    *,
    body: Body,
    namespace: str | None = None,
    sending: Sending = ORDINARY,
) -> Written:
    """Create an object; its name is in the body.

    Args:
        client: sends the requests.
        resource: the kind.
        body: the object, with its name.
        namespace: namespace of the object. None: a cluster-scoped kind.
        sending: retries and time limits.

    Raises:
        AlreadyExists: The name is taken, perhaps by an earlier attempt of our own.
        Forbidden: RBAC, a quota or Pod Security refused it; the message says which.
        Invalid: The object is wrong.
        KubeError: Anything else.
    """
    # A repeated create is safe only because the name is in the body. `generateName` would add
    # objects.
    path = resource.path(namespace=namespace)
    return await _send(client, Verb.CREATE, resource, path=path, body=_bytes(body), sending=sending)


async def dry_run(client: KubeClient, resource: Resource, *, body: Body, namespace: str) -> bytes:
    """Dry-run the creation of an object. Return the object as the API server admits it.

    Admission runs whole: quotas, LimitRanges, Pod Security and webhooks.

    Args:
        client: sends the requests.
        resource: the kind.
        body: the object, with its name.
        namespace: namespace of the object.

    Raises:
        Forbidden: RBAC, a quota or Pod Security would refuse it; the message says which.
        Invalid: The object is wrong.
        KubeError: Anything else; a webhook may not support dry runs.
    """
    request = Request(
        verb=Verb.CREATE,
        resource=resource,
        path=resource.path(namespace=namespace),
        # Every webhook in the path must declare `None` or `NoneOnDryRun` as its side effects,
        # otherwise the server rejects it.
        query={"dryRun": "All"},
        body=_bytes(body),
    )
    return await client.send(request)


async def create_many(
    client: KubeClient,
    resource: Resource,
    *,
    bodies: Iterable[Body],
    namespace: str,
) -> list[Written | KubeError]:
    """Create many objects at once, as fast as the client's write limit lets them out.

    Args:
        client: sends the requests.
        resource: the kind.
        bodies: the objects, with their names.
        namespace: namespace of the objects.

    Returns:
        One outcome a body, in order. A failure does not stop the others: whether a partial gang
        is to be taken back is the caller's decision.
    """

    async def attempt(body: Body) -> Written | KubeError:
        try:
            return await create(client, resource, body=body, namespace=namespace)
        except KubeError as error:
            return error

    # The client's write slots are the bound here, so thousands of tasks may wait at once.
    return list(await asyncio.gather(*map(attempt, bodies)))


async def replace(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    body: Body,
    namespace: str | None = None,
    sending: Sending = ORDINARY,
) -> Written:
    """Replace an object as a whole, if it still is at the resourceVersion in the body.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        body: the whole object, with the resourceVersion it must have.
        namespace: namespace of the object. None: a cluster-scoped kind.
        sending: retries and time limits.

    Raises:
        Conflict: It is not.
        KubeError: Anything else.
    """
    # PUT compares the body's resourceVersion in the etcd transaction, so a lost race answers 409.
    path = resource.path(namespace=namespace, name=name)
    return await _send(client, Verb.UPDATE, resource, path=path, body=_bytes(body), sending=sending)


async def replace_status(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    uid: str,
    resource_version: str,
    status: Mapping[str, Any],
    namespace: str | None = None,
) -> Written:
    """Replace the whole status, if the object still is this one at this version.

    Fields missing in `status` are gone afterwards.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        uid: uid that the object must have.
        resource_version: version that the object must have.
        status: the whole new status.
        namespace: namespace of the object. None: a cluster-scoped kind.

    Raises:
        Conflict: The object changed since `resource_version`, or is another one of the same name.
        NotFound: It is gone.
        KubeError: Anything else.
    """
    # Version and uid inside the patch make the server check both against what it has stored.
    patch = [
        {"op": "replace", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        # `add` replaces the member if it exists, so a job without a status needs no other patch.
        {"op": "add", "path": "/status", "value": status},
    ]
    path = resource.path(namespace=namespace, name=name, subresource="status")
    return await _send(
        client, Verb.PATCH, resource, path=path, body=_encode(patch), content_type=_JSON_PATCH
    )


async def merge_patch(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    body: Mapping[str, Any],
    namespace: str | None = None,
    subresource: str | None = None,
) -> Written:
    """Change only the fields named in the body; None removes one.

    A `metadata.resourceVersion` or `metadata.uid` in the body makes the patch conditional on it.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        body: fields to change.
        namespace: namespace of the object. None: a cluster-scoped kind.
        subresource: for example `status`. None: the object itself.

    Raises:
        Conflict: A condition in the body does not hold.
        KubeError: Anything else.
    """
    # A merge patch replaces lists whole. Callers of kinds with shared lists use `strategic_patch`.
    path = resource.path(namespace=namespace, name=name, subresource=subresource)
    return await _send(
        client, Verb.PATCH, resource, path=path, body=_encode(body), content_type=_MERGE_PATCH
    )


async def strategic_patch(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    body: Mapping[str, Any],
    namespace: str | None = None,
) -> Written:
    """Change an object of a built-in kind; lists are merged by the keys of their kind.

    A `metadata.uid` in the body makes the patch conditional on it.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        body: fields to change.
        namespace: namespace of the object. None: a cluster-scoped kind.

    Raises:
        Conflict: It is another object of this name.
        KubeError: Anything else.
    """
    # CRDs have no merge keys: the server answers 415 to a strategic patch of a custom resource.
    path = resource.path(namespace=namespace, name=name)
    return await _send(
        client, Verb.PATCH, resource, path=path, body=_encode(body), content_type=_STRATEGIC_PATCH
    )


async def add_owner(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    owner: Mapping[str, Any],
    namespace: str | None = None,
) -> Written:
    """Add an owner to an object of a built-in kind; it lives as long as any owner does.

    Strategic merge keeps the owners that are there: they are keyed by uid.

    Args:
        client: sends the requests.
        resource: the kind.
        name: name of the object.
        owner: the owner reference.
        namespace: namespace of the object. None: a cluster-scoped kind.

    Raises:
        NotFound: It is gone, perhaps with its last owner.
        KubeError: Anything else.
    """
    # The garbage collector deletes an object only when its last owner is gone.
    body = {"metadata": {"ownerReferences": [owner]}}
    return await strategic_patch(client, resource, name=name, body=body, namespace=namespace)


async def bind(client: KubeClient, pod: str, *, uid: str, namespace: str, node: str) -> None:
    """Bind this very pod to a node.

    Args:
        client: sends the requests.
        pod: name of the pod.
        uid: uid that the pod must have.
        namespace: namespace of the pod.
        node: name of the node.

    Raises:
        Conflict: It is another pod of that name, or bound to another node.
        NotFound: It is gone.
        KubeError: Anything else.
    """
    # The uid is the precondition. Without it a pod that was created again would be bound unseen.
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    # An update cannot set nodeName. The binding subresource sets it once, and answers 409 later.
    path = PODS.path(namespace=namespace, name=pod, subresource="binding")
    request = Request(verb=Verb.CREATE, resource=PODS, path=path, body=_encode(binding))
    await client.send(request)


async def delete(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    uid: str | None,
    namespace: str | None = None,
    grace_seconds: int | None = None,
) -> None:
    """Delete an object. Its children are deleted in the background.

    Args:
        client: The client to send with.
        resource: The object's kind.
        name: The object's name.
        uid: Delete only this very object, not a successor of the same name; None deletes any.
        namespace: The object's namespace, if its kind has one.
        grace_seconds: Replaces the object's own grace period; 0 deletes at once.

    Raises:
        NotFound: It is gone already.
        Conflict: The name belongs to another object now.
        KubeError: Anything else.
    """
    # A DELETE with a body is allowed here: DeleteOptions travel in it.
    request = Request(
        verb=Verb.DELETE,
        resource=resource,
        path=resource.path(namespace=namespace, name=name),
        body=_delete_options(uid=uid, grace_seconds=grace_seconds),
    )
    await client.send(request)


async def evict(
    client: KubeClient, *, name: str, namespace: str, uid: str, dry_run: bool = False
) -> None:
    """Ask for the eviction of this very pod, once.

    Args:
        client: sends the requests.
        name: name of the pod.
        namespace: namespace of the pod.
        uid: uid that the pod must have.
        dry_run: whether to ask only whether the pod could be evicted.

    Raises:
        TooManyRequests: A PodDisruptionBudget denies it now.
        NotFound: It is gone already.
        Conflict: The name belongs to another pod now.
        KubeError: Anything else.
    """
    # Eviction takes the uid in its delete options.
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    request = Request(
        verb=Verb.CREATE,
        resource=PODS,
        path=PODS.path(namespace=namespace, name=name, subresource="eviction"),
        query={"dryRun": "All"} if dry_run else {},
        body=_encode(eviction),
        sending=Sending(retry=ONCE),  # a budget's answer is no overload that passes
    )
    await client.send(request)


async def delete_collection(
    client: KubeClient,
    resource: Resource,
    *,
    namespace: str,
    label_selector: str,
    grace_seconds: int | None = None,
) -> None:
    """Ask for all objects with these labels to be deleted, in one request.

    Args:
        client: sends the requests.
        resource: the kind.
        namespace: namespace of the objects.
        label_selector: as in kubectl. Must not be empty.
        grace_seconds: grace period. None: that of each object.

    Raises:
        ValueError: The selector is empty: that would be everything.
        KubeError: The request failed; some objects may be gone.
    """
    if not label_selector:
        raise ValueError("an empty selector would delete every object of the namespace")
    # The server lists and deletes one by one. A timeout leaves some objects behind.
    request = Request(
        verb=Verb.DELETE_COLLECTION,
        resource=resource,
        path=resource.path(namespace=namespace),
        query={"labelSelector": label_selector},
        body=_delete_options(uid=None, grace_seconds=grace_seconds),
    )
    await client.send(request)


async def _send(
    client: KubeClient,
    verb: Verb,
    resource: Resource,
    *,
    path: str,
    body: bytes,
    content_type: str = JSON,
    sending: Sending = ORDINARY,
) -> Written:
    request = Request(
        verb=verb,
        resource=resource,
        path=path,
        body=body,
        content_type=content_type,
        sending=sending,
    )
    return written_in(await client.send(request))


def _delete_options(*, uid: str | None, grace_seconds: int | None) -> bytes:
    # Foreground would keep the owner visible until all pods are gone, and its name would stay
    # taken.
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
    }
    if uid is not None:
        # The server compares the uid in storage and answers 409 for a successor.
        options["preconditions"] = {"uid": uid}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return _encode(options)


def _bytes(body: Body) -> bytes:
    return body if isinstance(body, bytes) else _encode(body)


def written_in(answer: bytes) -> Written:
    """Return the identity in the answer to a write, which contains the whole object.

    Raises:
        Malformed: the answer has no identity.
    """
    # The answer holds the whole object as admitted, which a tenant's webhook may have nested
    # deeply.
    try:
        try:
            metadata = _decode_written(answer).metadata
        except RecursionError:  # even what is skipped is walked through
            metadata = _decode_written(flattened(answer)).metadata
    except msgspec.MsgspecError as error:
        raise Malformed(f"an answer of {len(answer)} bytes: {error}") from error
    return Written(uid=metadata.uid, resource_version=metadata.resource_version)
