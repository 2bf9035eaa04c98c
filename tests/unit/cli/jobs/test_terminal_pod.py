"""Back to a shell that was suspended: what is written, said and waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.manifests import kubeconfig
from tests.unit.cli.run.test_command import CORE, JOBS, ROOT, Served, serving
from tests.unit.cli.test_program import drumline

MESSAGE = "its terminal was idle: all other files of its pod are lost"


@dataclass
class SuspendedShell(Served):
    """An API server with one, and an operator that looks a while after it was resumed."""

    reason: str = "IdleGpus"
    suspend: bool = False
    room: bool = True
    """For it to run."""
    generation: int = 1
    looks: int = 0
    """At the job, since its spec was changed."""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH":
            self.generation, self.looks = self.generation + 1, 0
        return super().answer(method, path, body)

    def read(self, path: str) -> tuple[int, Any]:
        runs = self.room and self.generation > 1 and self.looks > 1
        if path == f"{CORE}/pods":
            metadata = {"name": "mine-0-g2", "labels": {"drumline.dev/index": "0"}}
            container: dict[str, Any] = {"name": "trainer", "state": {"running": {}}}
            pod = {"metadata": metadata, "status": {"containerStatuses": [container]}}
            return 200, {"metadata": {"resourceVersion": "9"}, "items": [pod] if runs else []}
        if path != f"{JOBS}/mine":
            return super().read(path)
        self.looks += 1
        status = {"phase": "Suspended", "reason": self.reason, "message": MESSAGE}
        return 200, {
            "metadata": {
                "name": "mine",
                "namespace": "team",
                "uid": "uid-1",
                "generation": self.generation,
            },
            "spec": {"template": {"image": "any:1", "tty": True}, "suspend": self.suspend},
            "status": {**status, "observedGeneration": 1},
        }


def shell(folder: Path, served: Served) -> subprocess.CompletedProcess[str]:
    """`drumline shell mine`, with a kubectl that says what it is asked."""
    stand_in = folder / "kubectl"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    stand_in.chmod(0o755)
    with serving(served) as server:
        config = kubeconfig(folder, server)
        words = ("shell", "mine", "--kubeconfig", str(config))
        return drumline(*words, environment={"PATH": str(folder)})


def test_an_idle_shell_is_resumed_says_what_is_gone_and_is_entered_once_it_runs(
    tmp_path: Path,
) -> None:
    served = SuspendedShell()
    done = shell(tmp_path, served)
    assert (done.returncode, done.stderr) == (0, "")
    assert [body for _, body in served.patched] == [
        {"spec": {"suspend": True}},  # any change resumes it, and false it is already
        {"spec": {"suspend": False}},
    ]
    assert done.stdout.startswith(f"mine was suspended: {MESSAGE}\n")
    assert done.stdout.endswith("|attach|-i|mine-0-g2|--container=trainer|")


@pytest.mark.extended(keep=3, of="a command as a process")
@pytest.mark.parametrize(
    "served",
    [SuspendedShell(reason="SuspendedByUser", suspend=True), SuspendedShell(suspend=True)],
    ids=["stopped", "idle, and stopped"],
)
def test_a_shell_that_its_user_has_stopped_stays_so(tmp_path: Path, served: SuspendedShell) -> None:
    done = shell(tmp_path, served)
    assert (done.returncode, served.patched) == (1, [])
    assert "drumline resume mine -n team queues a suspended job again" in done.stderr


@pytest.mark.extended(keep=3, of="a command as a process")
def test_who_may_not_change_the_job_is_told(tmp_path: Path) -> None:
    refused = {("PATCH", f"{JOBS}/mine"): (403, "no right to patch")}
    done = shell(tmp_path, SuspendedShell(refused=refused))
    assert done.returncode == 1
    assert "no right to patch" in done.stderr


@pytest.mark.extended(keep=3, of="a command as a process")
def test_who_does_not_wait_for_room_leaves_the_job_in_line(tmp_path: Path) -> None:
    served = SuspendedShell(room=False)
    with serving(served) as server:
        config = kubeconfig(tmp_path, server)
        with subprocess.Popen(
            [sys.executable, "-m", "drumline", "shell", "mine", "--kubeconfig", str(config)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a shell in whose background the tests run has it ignored, and children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("mine was suspended")
            assert process.stdout.readline().startswith("Suspended")  # it waits from here on
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
    assert process.returncode == 1
    assert "drumline shell mine -n team connects to it again" in said
    assert served.patched[-1][1] == {"spec": {"suspend": False}}
