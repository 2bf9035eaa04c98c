"""`drumline shell` without a job: the job it makes, and what its command does on a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract import ExitCode
from tests.patience import HANG_SECONDS
from tests.unit.cli.test_program import drumline

pytestmark = pytest.mark.extended(keep=2)


def manifest(*words: str) -> dict[str, Any]:
    done = drumline("shell", "-q", "research", "--image", "any:1", "--dry-run", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return yaml.safe_load(done.stdout)


def test_a_shell_is_a_job_of_one_pod_on_a_terminal_in_the_first_claim() -> None:
    job = manifest("-G2", "--claim", "home=/work", "--claim", "data=/data", "--name", "mine")
    spec = job["spec"]
    assert job["metadata"]["name"] == "mine"
    assert (spec["queue"], spec["nodes"], spec["gpusPerNode"]) == ("research", 1, 2)
    template = spec["template"]
    assert (template["tty"], template["workingDir"]) == (True, "/work")
    assert [each["mountPath"] for each in template["volumeMounts"]] == ["/work", "/data"]
    assert template["env"] == [{"name": "SHELL_IDLE_SECONDS", "value": "3600"}]
    parse(TrainingJobSpec, spec)


def test_another_command_and_another_time_of_idleness() -> None:
    template = manifest("--idle", "60", "--", "ipython")["spec"]["template"]
    assert template["command"] == ["ipython"]
    assert template["env"][0]["value"] == "60"


@pytest.mark.parametrize("words", [["--rank", "1"], ["--delete"]])
def test_what_is_about_a_job_needs_one(words: list[str]) -> None:
    done = drumline("shell", "-q", "research", "--image", "any:1", "--dry-run", *words)
    assert (done.returncode, "drumline shell JOB" in done.stderr) == (2, True)


def test_a_new_shell_without_a_terminal_is_refused_before_it_holds_gpus() -> None:
    done = drumline("shell", "-q", "research", "--image", "any:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a new shell needs a terminal" in done.stderr


class Terminal:
    """The shell's command as a kubelet starts it: on a terminal of its own."""

    def __init__(self, home: Path, *, idle: str, path: str | None = None, own: str = ":") -> None:
        (home / ".bashrc").write_text(f"PS1='ready> '\n{own}\n")
        self._ours, theirs = pty.openpty()
        environment = {
            "HOME": str(home),
            "TMPDIR": str(home),
            "PATH": path or os.environ["PATH"],
            "PS1": "ready> ",
            "SHELL_IDLE_SECONDS": idle,
            "TERM": "dumb",
        }
        command = manifest()["spec"]["template"]["command"]
        program = ["/bin/sh", *command[1:]]
        self.process = subprocess.Popen(
            program,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            close_fds=True,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def write(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows it behind what was waited for before."""
        deadline = time.monotonic() + HANG_SECONDS
        while text not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.text!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.text += os.read(self._ours, 4096).decode()
        self.text = self.text.partition(text)[2]

    def end(self) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(HANG_SECONDS)
        finally:
            self.process.kill()
            os.close(self._ours)


def test_the_shell_reads_the_users_file_and_ends_well_whatever_its_last_command_did(
    tmp_path: Path,
) -> None:
    terminal = Terminal(tmp_path, idle="3600")
    terminal.wait_for("ready> ")
    terminal.write("echo limit=$TMOUT; export -p | grep -c TMOUT")
    terminal.wait_for("limit=3600")
    terminal.wait_for("0")
    terminal.write("false; exit 3")
    assert terminal.end() == 0


def test_a_prompt_without_input_is_idle_and_a_running_command_is_not(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, idle="3600")
    terminal.write(
        "TMOUT=1; sleep 2; echo finished=$?"
    )  # longer than a prompt may be idle from now
    terminal.wait_for("finished=0")
    terminal.wait_for("timed out waiting for input")
    terminal.wait_for("Files on claims stay, everything else here is gone")
    assert terminal.end() == ExitCode.IDLE


def test_who_leaves_after_a_long_command_or_by_the_end_of_the_input_was_not_idle(
    tmp_path: Path,
) -> None:
    by_command = Terminal(tmp_path, idle="3600")
    by_command.write("TMOUT=1; sleep 2; exit 3")
    assert by_command.end() == 0
    by_end = Terminal(tmp_path, idle="3600")
    by_end.wait_for("ready> ")
    by_end.write("\x04")
    assert by_end.end() == 0


@pytest.mark.parametrize("own", ["PROMPT_COMMAND='echo drawn;'", "PROMPT_COMMAND=(: 'echo drawn')"])
def test_what_the_user_has_done_before_each_prompt_is_done_as_before(
    tmp_path: Path, own: str
) -> None:
    terminal = Terminal(tmp_path, idle="1", own=own)
    terminal.wait_for("drawn")
    terminal.wait_for("this shell is idle")
    assert terminal.end() == ExitCode.IDLE


def test_an_image_without_bash_has_a_shell_that_says_that_nothing_suspends_it(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    sh = shutil.which("dash") or shutil.which("sh")
    assert sh is not None
    (programs / "sh").symlink_to(sh)
    terminal = Terminal(tmp_path, idle="1", path=str(programs))
    terminal.wait_for("no idle shell is suspended")
    terminal.write("exit 3")
    assert terminal.end() == 0
