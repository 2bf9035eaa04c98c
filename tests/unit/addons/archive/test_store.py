"""The same archive in a folder, in memory, and in a store that speaks S3, on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline_addons.archive.store import ArchiveError, ArchiveStore, NotArchived
from tests.moto_store import moto_store
from tests.texts import missing

KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "which-no-message-may-hold"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_store("archive", KEYS) as address:
        yield address


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}/a folder/jobs"
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("endpoint"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://archive/{tmp_path.name}/jobs"


async def test_what_is_written_is_listed_read_replaced_and_deleted(url: str) -> None:
    store = ArchiveStore.at(url, create=True)
    await store.put("live/a.json", b"1")
    await store.put("live/b.json", b"2")
    await store.put("live/a.json", b"3")
    again = ArchiveStore.at(url)
    assert sorted(file.path for file in await again.list("live/")) == ["live/a.json", "live/b.json"]
    assert await again.get_all(["live/b.json", "live/a.json"]) == [b"2", b"3"]
    await again.delete(["live/a.json", "live/never.json"])
    assert [file.path for file in await again.list("live/")] == ["live/b.json"]
    assert await again.list("ended/") == []
    with pytest.raises(NotArchived, match=r"live/a\.json"):
        await again.get("live/a.json")


@pytest.mark.parametrize("url", ["", "jobs", "/jobs", "ftp://host/jobs", "https://host/jobs"])
def test_an_archive_is_a_folder_or_a_bucket(url: str) -> None:
    with pytest.raises(ArchiveError, match="want file:///FOLDER, s3://"):
        ArchiveStore.at(url)


def test_a_folder_that_is_only_read_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot open the archive"):
        ArchiveStore.at(f"file://{tmp_path}/nowhere")


async def test_a_storage_that_refuses_is_said_in_a_sentence(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = ArchiveStore.at("s3://no-such-bucket/jobs")
    with pytest.raises(ArchiveError) as refused:
        await store.put("live/a.json", b"1")
    text = str(refused.value)
    assert not missing(text, "live/a.json", "s3://no-such-bucket/jobs")
    assert "\n" not in text
    assert KEYS["aws_secret_access_key"] not in text


async def test_the_user_of_an_endpoint_is_in_no_message(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.replace("://", "://me:hidden@"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    store = ArchiveStore.at("s3://no-such-bucket/jobs")
    with pytest.raises(ArchiveError, match=r"http://\.\.\. in") as refused:
        await store.put("live/a.json", b"1")
    assert "hidden" not in str(refused.value)
