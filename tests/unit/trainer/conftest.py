"""One compute thread, and a prefix of the store for each test that asks.

One thread: matrices of tests are small, and threads that wait for one another spin.

On two busy cores two threads take four times as long, and more than twice the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.object_store import BUCKET, ObjectStore
from tests.store_proxy import Proxy, proxy_to


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    torch.set_num_threads(1)


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
