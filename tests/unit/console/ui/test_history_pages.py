"""The pages of the archive: what they show, from where, and that foreign text stays text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from drumline_addons.archive.documents import archivable_job, document
from drumline_addons.archive.layout import EndedPath
from drumline_addons.archive.reading import EndedJob, ended_of
from drumline_cli.archived_jobs import ArchivedJobs
from drumline_cli.errors import NotAnswered
from drumline_console.ui import history_pages, pages
from drumline_console.ui.archive_source import FRESH_SECONDS, Archive
from drumline_console.ui.server import serve
from tests.unit.addons.archive.jobs import raw_job
from tests.unit.cli.manifests import an_event
from tests.unit.console.ui.shown import Shown
from tests.unit.console.ui.test_pages import HOSTILE, audited
from tests.unit.console.ui.test_server import SECRET
from tests.unit.overview.objects import NOW, a_cluster

STATUS = {
    "phase": "Succeeded",
    "reason": "Completed",
    "startedAt": "2026-11-23T10:00:00Z",
    "finishedAt": "2026-11-23T12:00:00Z",
    "gpuSeconds": {"until": "2026-11-23T12:00:00Z", "productive": 115_200},
}


def body(**status: Any) -> bytes:
    kept = archivable_job(json.dumps(raw_job(**STATUS | status)).encode()).unpacked()
    return document(kept, events=[an_event()], archived_at=NOW, deleted_at=None)


def ended(raw: bytes, *, name: str = "llama") -> EndedJob:
    path = EndedPath(day=date(2026, 11, 23), namespace="research", name=name, uid="u-1")
    return ended_of(path, raw)


def test_the_history_shows_what_jobs_came_to() -> None:
    page = history_pages.history(ArchivedJobs(jobs=(ended(body()),), remarks=("One.",)), now=NOW)
    text = audited(page).text
    for words in ("1 job ended within 30 days", "research/llama", "ada", "2 h", "32.0", "One."):
        assert words in text
    assert 'href="history/research/llama/u-1"' in page


def test_a_job_of_the_archive_has_its_report() -> None:
    text = audited(history_pages.ended_job(ended(body()))).text
    assert "Succeeded" in text
    assert "From the archive" in text


@pytest.mark.parametrize("hostile", HOSTILE)
def test_foreign_text_is_text(hostile: str) -> None:
    raw = raw_job(**STATUS | {"reason": hostile[:64], "message": hostile, "loss": hostile[:32]})
    raw["spec"] |= {"queue": hostile, "user": hostile}
    event = an_event(note=hostile, reason=hostile)
    whole = {"archive": {"archivedAt": hostile}, "items": [raw, event]}
    job = ended(json.dumps(whole).encode(), name=hostile)
    audited(history_pages.history(ArchivedJobs(jobs=(job,)), now=NOW))
    try:
        page = history_pages.ended_job(job)
    except NotAnswered as error:  # what no API server would have taken
        page = pages.refused(str(error), title="Refused", up="../../../")
    audited(page)


def test_the_overview_leads_to_the_history_where_there_is_an_archive() -> None:
    assert 'href="history"' not in pages.overview(a_cluster())
    assert 'href="history"' in pages.overview(a_cluster(), archive=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "llama")
    return tmp_path


def put(folder: Path, name: str) -> None:
    path = EndedPath(day=date(2026, 11, 23), namespace="research", name=name, uid="u-1")
    file = folder / str(path)
    file.parent.mkdir(parents=True)
    file.write_bytes(body())


@pytest.fixture
async def address(folder: Path) -> AsyncIterator[str]:
    archive = Archive(folder.as_uri(), {}, clock=lambda: 1_795_500_000.0)
    async with serve(Shown(), archive=archive, port=0, secret=SECRET) as address:
        yield address


async def test_the_server_shows_them(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path, words in (
            ("", "history"),
            ("history", "research/llama"),
            ("history/research/llama/u-1", "From the archive"),
        ):
            async with session.get(address + path) as answer:
                assert (answer.status, words in await answer.text()) == (200, True)
        async with session.get(f"{address}history/research/llama/u-2") as answer:
            assert (answer.status, "no job" in await answer.text()) == (502, True)


async def test_the_archive_is_read_once_a_minute(folder: Path) -> None:
    now = [1_795_500_000.0]
    archive = Archive(folder.as_uri(), {}, clock=lambda: now[0])
    assert len((await archive.ended()).jobs) == 1
    put(folder, "second")
    assert len((await archive.ended()).jobs) == 1
    now[0] += FRESH_SECONDS + 1
    assert len((await archive.ended()).jobs) == 2
