"""The operator makes the first key, and only where there is none."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from drumline.app.signing_key_files import BadSigningKeyError, find_keys, read_keys
from drumline.kube.client import KubeClient
from drumline.lifecycle.model.signing_keys import SigningKeys
from tests.unit.controller.app.fake_api import FakeApi

MADE = "0123456789abcdef" * 4


async def keys_of(api: FakeApi, file: Path, *, name: str = "drumline-key") -> SigningKeys:
    async with api.serving() as credentials, KubeClient(credentials) as client:
        return await find_keys(
            client, file=file, namespace="system", secret=name, new_key=lambda: MADE
        )


async def test_the_mounted_key_is_used_with_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of sixteen bytes and more\n")
    (tmp_path / "previous").write_text("another key of sixteen bytes\n")
    api = FakeApi()
    keys = SigningKeys(
        current=b"a key of sixteen bytes and more", previous=b"another key of sixteen bytes"
    )
    assert await keys_of(api, tmp_path / "key") == keys
    assert api.requests == []


async def test_the_first_operator_makes_a_key_that_its_successors_read(tmp_path: Path) -> None:
    api = FakeApi()
    made = await keys_of(api, tmp_path / "key")
    (secret,) = api.objects("secrets")
    assert (secret["metadata"]["name"], "immutable" in secret) == ("drumline-key", False)
    (tmp_path / "key").write_bytes(base64.b64decode(secret["data"]["key"]))  # the kubelet's work
    assert read_keys(tmp_path / "key") == made == SigningKeys(current=MADE.encode())


async def test_the_second_operator_waits_for_the_key_of_the_first(tmp_path: Path) -> None:
    api = FakeApi()
    api.put("secrets", {"metadata": {"name": "drumline-key", "namespace": "system"}})
    waiting = asyncio.create_task(keys_of(api, tmp_path / "key"))
    await api.until(lambda: bool(api.requests))
    (tmp_path / "key").write_text("the key that the first has made")
    assert (await waiting).current == b"the key that the first has made"


async def test_a_secret_of_ones_own_is_never_made(tmp_path: Path) -> None:
    api = FakeApi()
    with pytest.raises(BadSigningKeyError, match="existingSecret"):
        await keys_of(api, tmp_path / "key", name="")
    assert api.requests == []


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    with pytest.raises(BadSigningKeyError, match="16 bytes"):
        read_keys(tmp_path / "key")
