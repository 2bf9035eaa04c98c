"""A prefix of the store for each test, and a world of one rank to restore in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.object_store import BUCKET, ObjectStore
from tests.store_proxy import Proxy, proxy_to


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[Proxy]:
    with proxy_to(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def store(object_store: ObjectStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, which this process reaches through the proxy."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in object_store.environment(port=proxy.port).items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path.parent.name}/{tmp_path.name}"


@pytest.fixture
def url(prefix: str, store: ObjectStore) -> str:
    assert store
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
