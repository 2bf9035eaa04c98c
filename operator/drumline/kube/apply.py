"""Server-side apply: our fields of an object are stated as a whole, the fields of others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from drumline.kube.request import Request, Verb
from drumline.kube.writes import Written, written_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drumline.kube.client import KubeClient
    from drumline.kube.resources import Resource

_APPLY_PATCH: Final = "application/apply-patch+yaml"


async def apply(
    client: KubeClient,
    resource: Resource,
    *,
    name: str,
    body: Mapping[str, Any],
    field_manager: str,
    namespace: str | None = None,
    force: bool = False,
) -> Written:
    """Server-side apply: create the object, or make exactly our fields be as in the body.

    Args:
        client: The client to send with.
        resource: The object's kind.
        name: The object's name.
        body: The fields we want to own; `apiVersion`, `kind` and the name are filled in.
        field_manager: Who we are among the owners of its fields.
        namespace: The object's namespace, if its kind has one.
        force: Take fields over from other owners instead of failing.

    Raises:
        Conflict: Another manager owns one of the fields, and `force` is off.
        KubeError: Anything else.
    """
    query = {"fieldManager": field_manager, "force": "true" if force else "false"}
    named = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": body.get("metadata", {}) | {"name": name},
    }
    request = Request(
        verb=Verb.APPLY,
        resource=resource,
        path=resource.path(namespace=namespace, name=name),
        query=query,
        body=msgspec.json.encode({**body, **named}),
        content_type=_APPLY_PATCH,
    )
    return written_in(await client.send(request))
