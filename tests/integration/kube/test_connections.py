"""A client that has gone leaves no connection behind."""

from __future__ import annotations

import asyncio
import gc
import warnings

from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import NAMESPACES
from drumline.kube.request import Request, Verb
from tests.integration.kube.conftest import make_namespace

_WATCH = Request(
    verb=Verb.WATCH, resource=NAMESPACES, path=NAMESPACES.path(), query={"watch": "true"}
)


async def _look_once(admin: Credentials) -> None:
    async with KubeClient(admin) as client:
        await make_namespace(client)
        async with client.stream(_WATCH, silence_seconds=60) as chunks:
            async for _ in chunks:
                break


def test_a_watch_that_is_given_up_is_closed_with_its_client(admin: Credentials) -> None:
    gc.collect()  # of others
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(20):
            asyncio.run(_look_once(admin))
        gc.collect()
    assert [str(each.message) for each in left_open] == []
