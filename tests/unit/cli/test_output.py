"""Output that cannot go where it should: a reader that left, a full disk, a closed stream."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from drumline_api.base import LABEL_INDEX
from tests.patience import HANG_SECONDS
from tests.unit.cli.manifests import a_manifest, as_yaml
from tests.unit.cli.test_program import EVENTS, JOB, ROOT, api_server, listed

PODS = "/api/v1/namespaces/team/pods"
LOG = f"{PODS}/llama-0-g1/log"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "llama-0-g1", "labels": {LABEL_INDEX: "0"}},
    "status": {"containerStatuses": [{"name": "trainer", "state": {"running": {}}}]},
}
LINES = "".join(f"2026-11-30T10:00:{second:02}Z step {second}\n" for second in range(60))


class LateLogs(dict[str, tuple[int, Any]]):
    """Answers by path; the log is withheld until the gate opens."""

    def __init__(self, gate: Event) -> None:
        super().__init__(
            {
                JOB: (200, a_manifest()),
                PODS: (200, {"metadata": {"resourceVersion": "5"}, "items": [POD]}),
                EVENTS: (200, listed()),
                LOG: (200, LINES),
            }
        )
        self._gate = gate

    def get(self, path: str, default: Any = None) -> Any:
        if path == LOG:
            self._gate.wait(HANG_SECONDS)
        return super().get(path, default)


def started(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    path = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"
    return subprocess.Popen(
        [sys.executable, "-m", "drumline", *arguments],
        **{"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams},
        env={**os.environ, "PYTHONPATH": path},
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said.decode()


@pytest.fixture
def gate() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_following_ends_when_the_reader_of_its_lines_has_gone(tmp_path: Path, gate: Event) -> None:
    with api_server(tmp_path, LateLogs(gate)) as (config, _):
        process = started(
            *("logs", "-f", "llama", "--kubeconfig", str(config)), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Running")
        process.stdout.close()
        process.stdout = None
        gate.set()
        # The job runs on, so only the lost reader can end the command.
        assert ended(process) == (0, "")


@pytest.mark.parametrize("arguments", [("logs", "-f", "llama"), ("report", "llama")])
def test_a_full_disk_ends_a_command_with_a_sentence(
    tmp_path: Path, gate: Event, arguments: tuple[str, ...]
) -> None:
    gate.set()
    with (
        api_server(tmp_path, LateLogs(gate)) as (config, _),
        Path("/dev/full").open("wb") as full,
    ):
        process = started(*arguments, "--kubeconfig", str(config), stdout=full)
        said = "drumline: standard output: No space left on device\n"
        assert ended(process) == (1, said)


def closed(process_arguments: str, redirections: str, file: Path) -> tuple[int, str]:
    command = f'exec "$0" -m drumline {process_arguments} {redirections}'
    path = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"
    done = subprocess.run(
        ["/bin/sh", "-c", command.format(file=file), sys.executable],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=HANG_SECONDS,
    )
    return done.returncode, done.stderr.decode()


def test_closed_streams_are_empty_ones(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(as_yaml(a_manifest()))
    assert closed("report -f {file}", ">&-", file) == (0, "")
    assert closed("report -f none", "2>&-", file) == (2, "")
    empty = "drumline: standard input: the file is empty\n"
    assert closed("report -f -", "<&-", file) == (2, empty)


def test_characters_that_an_encoding_lacks_lose_no_report(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(as_yaml(a_manifest()))
    done = subprocess.run(
        [sys.executable, "-m", "drumline", "report", "-f", str(file)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "PYTHONIOENCODING": "ascii",
        },
        capture_output=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"TrainingJob team/llama" in done.stdout
    assert b"?" in done.stdout
