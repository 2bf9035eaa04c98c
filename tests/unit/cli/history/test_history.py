"""`drumline history` and `usage --archive` on an archive in a folder, as people call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from drumline_addons.archive.documents import archivable_job, document
from drumline_addons.archive.layout import EarlierLogs, EndedPath, day_of
from drumline_cli.archived_jobs import archived_earlier_logs
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.jobs.archived_lines import archived_lines
from drumline_cli.overview.json_output import schema
from drumline_cli.program import main
from tests.texts import Golden, missing
from tests.unit.addons.archive.jobs import raw_job

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOON + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def succeeded(**more: Any) -> dict[str, Any]:
    return {
        "phase": "Succeeded",
        "reason": "Finished",
        "startedAt": at(-7200),
        "finishedAt": at(0),
        "step": 400,
        "totalSteps": 400,
        "loss": "2.31",
        "restarts": 1,
        "gpuSeconds": {"until": at(0), "productive": 16 * 7200},
        **more,
    }


def put(
    folder: Path, name: str, *, uid: str, deleted_at: float | None = None, **status: Any
) -> None:
    raw = raw_job(name, uid=uid, **status)
    ended = NOON if deleted_at is None else deleted_at
    if status.get("finishedAt"):
        ended = datetime.fromisoformat(status["finishedAt"]).timestamp()
    path = folder / str(EndedPath(day=day_of(ended), namespace="research", name=name, uid=uid))
    path.parent.mkdir(parents=True)
    kept = archivable_job(json.dumps(raw).encode()).unpacked()
    path.write_bytes(document(kept, events=[], archived_at=ended + 5, deleted_at=deleted_at))


@pytest.fixture
def archive(tmp_path: Path) -> str:
    put(tmp_path, "llama", uid="u-1", **succeeded())
    put(tmp_path, "llama", uid="u-0", **succeeded(finishedAt=at(-3 * 86_400), phase="Failed"))
    put(
        tmp_path,
        "gone",
        uid="u-2",
        deleted_at=NOON - 60,
        reason="Training",
        assignment={"gpuPool": "h100", "nodes": ["a", "b"]},
        conditions=[
            {
                "type": "Running",
                "status": "True",
                "reason": "Training",
                "message": "",
                "lastTransitionTime": at(-3660),
            }
        ],
        gpuSeconds={"until": at(-3660), "productive": 0},
    )
    return tmp_path.as_uri()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_jobs_that_ended_are_listed_the_last_first(
    archive: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    text = shown(capsys, "history", "--archive", archive)
    golden("history.txt", text)
    heads, *lines = [line.split() for line in text.splitlines()]
    assert heads[0] == "ENDED"
    assert [line[2] for line in lines] == ["research/llama", "research/gone", "research/llama"]
    first, deleted, _ = lines
    assert first[3:7] == ["nlp", "ada", "Succeeded", "2"]
    assert first[8:] == ["32.0", "1", "400/400", "2.31", "Finished"]
    assert deleted[5] == "Deleted"
    assert "16.0" in deleted  # two nodes of eight GPUs for an hour, and none after its deletion


def test_a_period_a_queue_a_user_a_namespace_and_a_number_choose(
    archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*arguments: str) -> list[str]:
        text = shown(capsys, "history", "--archive", archive, "-o", "json", *arguments)
        document = json.loads(text)
        jsonschema.validate(document, schema())
        return [row["name"] for row in document["rows"]]

    assert names() == ["llama", "gone", "llama"]
    assert names("--since", "2026-11-23") == ["llama", "gone"]
    assert names("--limit", "1") == ["llama"]
    assert names("-n", "elsewhere") == names("-q", "vision") == names("-u", "eve") == []
    assert len(names("-n", "research", "-q", "nlp", "-u", "ada")) == 3


def test_the_report_of_a_job_is_of_its_last_run(
    archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "history", "llama", "--archive", archive)
    assert "research/llama" in text
    assert "Succeeded" in text
    assert not missing(text, "2026-11-23", "12:00:05Z")
    assert "1 earlier job of this name ended before." in text
    report = json.loads(shown(capsys, "history", "gone", "--archive", archive, "-o", "json"))
    assert report["name"] == "gone"
    assert "<html" in shown(capsys, "history", "gone", "--archive", archive, "-o", "html")


def test_a_job_that_was_deleted_says_so(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "history", "gone", "--archive", archive)
    assert not missing(text, "2026-11-23", "11:59:00Z")


def test_the_last_lines_of_pods_are_shown_fit_for_a_terminal(
    archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"==> llama-0-g1 on node-a <==\nstep 400\x1b[2J\xff\n"
    (tmp_path / "ended/2026-11-23/research/llama/u-1.log").write_bytes(lines)
    text = shown(capsys, "history", "llama", "--logs", "--archive", archive)
    assert text.startswith("==> llama-0-g1 on node-a <==\nstep 400")
    assert "\x1b" not in text
    error = shown(capsys, "history", "gone", "--logs", "--archive", archive, code=1)
    assert not missing(error, "research/gone")
    assert "JOB --logs" in shown(capsys, "history", "--logs", "--archive", archive, code=2)


@pytest.mark.usefixtures("archive")
def test_other_commands_read_a_document_that_was_copied_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "ended/2026-11-23/research/llama/u-1.json")
    assert "research/llama" in shown(capsys, "report", "-f", file)
    assert "400/400" in shown(capsys, "list", "-A", "-f", file)


def test_usage_counts_jobs_that_are_gone_and_none_twice(
    archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"kind": "List", "items": [raw_job(uid="u-1", **succeeded())]}))
    arguments = ("usage", "-f", str(cluster), "-o", "json")
    (alone,) = json.loads(shown(capsys, *arguments))["rows"]
    (whole,) = json.loads(shown(capsys, *arguments, "--archive", archive))["rows"]
    assert (alone["jobs"], alone["gpuSeconds"]) == (1, 16 * 7200)
    assert (whole["jobs"], whole["gpuSeconds"]) == (3, 2 * 16 * 7200 + 16 * 3600)
    acting = json.loads(shown(capsys, *arguments, "--archive", archive, "--as", "ann"))
    assert (acting["rows"], acting["remarks"][0][:24]) == ([alone], "The archive is left out:")


def test_the_environment_names_the_archive(
    archive: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMLINE_ARCHIVE", archive)
    assert "research/gone" in shown(capsys, "history")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("history",),
            2,
            "no archive is set; use --archive URL, or DRUMLINE_ARCHIVE: file:///FOLDER",
        ),
        (
            ("history", "--archive", "jobs"),
            2,
            "unsupported archive URL 'jobs': want file:///FOLDER",
        ),
        (("history", "--archive", "file:///nowhere/at/all"), 2, "cannot open the archive"),
        (("history", "nobody"), 1, "the archive has no ended job 'nobody'"),
        (("history", "--as", "ann"), 2, "leave --as, --as-group and --as-uid out"),
        (("history", "--as", "ann", "--as-group", "ml"), 2, "rights of its storage"),
        (("history", "--since", "yesterday"), 2, "want a duration such as 30d"),
    ],
)
def test_bad_input_is_one_sentence(
    archive: str,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    known = () if code == 2 and "--since" not in arguments else ("--archive", archive)
    assert words in shown(capsys, *arguments, *known, code=code)


def test_the_process_ends_in_peace(archive: str) -> None:
    """Threads of the storage library that outlived the interpreter's end aborted every second."""
    command = [sys.executable, "-m", "drumline", "history", "nobody", "--archive", archive]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    codes = [
        subprocess.run(command, env=environment, check=False, capture_output=True).returncode
        for _ in range(3)
    ]
    assert codes == [1] * 3


def test_jobs_of_several_namespaces_are_told_apart(
    archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "ended/2026-11-23/research/llama").glob("*.json"):
        other = tmp_path / "ended/2026-11-23/vision/llama" / path.name
        other.parent.mkdir(parents=True)
        other.write_bytes(path.read_bytes())
    error = shown(capsys, "history", "llama", "--archive", archive, code=1)
    assert "(research, vision); use -n to select one" in error


def test_documents_that_cannot_be_read_are_counted(
    archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "ended/2026-11-23/research/llama/u-9.json"
    broken.write_bytes(b"{")
    text = shown(capsys, "history", "--archive", archive)
    assert text.endswith("1 document of the archive cannot be read by this version of drumline.\n")


def test_the_lines_of_a_generation_that_is_gone_are_read_from_the_archive(tmp_path: Path) -> None:
    store = tmp_path / "logs/research/u-1"
    store.mkdir(parents=True)
    for generation, at_seconds in ((1, 86_400), (2, 172_800)):
        text = f"==> llama-0-g{generation} on a <==\n2026-11-23T12:00:01Z step {generation}\n"
        place = EarlierLogs(namespace="research", uid="u-1", generation=generation, at=at_seconds)
        (tmp_path / str(place)).write_text(text)
    url = f"file://{tmp_path}"
    (text,) = archived_earlier_logs(url, {}, namespace="research", uid="u-1", generation=2)
    assert [line.shown for line in archived_lines([text])] == ["[0] step 2"]
    with pytest.raises(NotAnswered, match="it has generations: 1, 2"):
        archived_earlier_logs(url, {}, namespace="research", uid="u-1", generation=3)
    with pytest.raises(BadInput, match=r"--archive.*URL.*DRUMLINE_ARCHIVE"):
        archived_earlier_logs(None, {}, namespace="research", uid="u-1", generation=3)
