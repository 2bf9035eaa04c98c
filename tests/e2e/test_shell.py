"""`drumline shell` on a terminal, in a real pod: lost, found again, ended."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.site import QUEUE, Site
from tests.kube import phase_is
from tests.patience import HANG_SECONDS
from tools.cluster.binaries import ensure_binaries
from tools.cluster.control_plane import SERVICE_ADDRESS
from tools.cluster.images import TRAINER_IMAGE
from tools.cluster.network import fabric_netns

pytestmark = pytest.mark.extended(keep=2, of="commands in pods")

API = f"https://{SERVICE_ADDRESS}:443"


class Terminal:
    """The command line of a user who sits before it."""

    def __init__(self, site: Site, folder: Path, *words: str) -> None:
        inner = folder / "inside.kubeconfig"
        config = yaml.safe_load(site.cluster.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = API
        inner.write_text(json.dumps(config))
        netns = fabric_netns(site.cluster.name)
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [
                *("/usr/bin/nsenter", f"--net=/run/netns/{netns}", "--"),
                *(sys.executable, "-m", "drumline", "shell", *words),
                *("--kubeconfig", str(inner), "-n", site.namespace),
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={
                "PATH": f"{folder}:/usr/bin:/bin",
                "PYTHONPATH": "operator:trainer",
                "TERM": "dumb",
            },
        )
        os.close(theirs)
        self.text = ""

    def write(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def wait_for(self, text: str) -> None:
        """Read until it shows this behind what was waited for before."""
        deadline = time.monotonic() + HANG_SECONDS
        while text not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.text!r}"
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self.text += os.read(self._ours, 4096).decode(errors="replace")
                except OSError:  # nobody has the other end any more
                    raise AssertionError(f"{text!r} is not in {self.text!r}") from None
        self.text = self.text.partition(text)[2]

    def lose(self) -> None:
        """The user's machine is gone from one moment to the next."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(HANG_SECONDS)
        os.close(self._ours)

    def end(self) -> None:
        """It has ended by itself."""
        try:
            self._process.wait(HANG_SECONDS)
        finally:
            self._process.kill()
            os.close(self._ours)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With kubectl, as a user has it on the path."""
    program = ensure_binaries(["kubectl"], say=print)["kubectl"]
    shutil.copy(program, tmp_path / "kubectl")
    return tmp_path


@contextmanager
def terminal(site: Site, folder: Path, *words: str) -> Iterator[Terminal]:
    opened = Terminal(site, folder, *words)
    try:
        yield opened
    except BaseException:
        opened.lose()
        raise


def test_a_shell_outlives_its_connection_and_ends_with_exit(site: Site, folder: Path) -> None:
    options = ("-q", QUEUE, "-G1", "--image", TRAINER_IMAGE, "--name", "mine")
    with terminal(site, folder, *options, "--claim", "checkpoints=/work") as first:
        first.wait_for("it ends with its shell")
        first.write("word=kept; pwd; echo a file >note; echo ready=$((40 + 2))")
        first.wait_for("/work")
        first.wait_for("ready=42")
        first.lose()
    with terminal(site, folder, "mine") as again:
        again.write("echo $word-here")
        again.wait_for("kept-here")
        again.write("false; exit")
        again.end()
    site.finish("mine")
    assert (site.checkpoints / "note").read_text() == "a file\n"


def test_a_shell_that_nobody_uses_is_suspended_and_begins_anew_in_its_claim(
    site: Site, folder: Path
) -> None:
    """Its time is shortened once its user is there: however late that is."""
    options = ("-q", QUEUE, "-G1", "--image", TRAINER_IMAGE, "--name", "idle", "--idle", "3000")
    with terminal(site, folder, *options, "--claim", "checkpoints=/work") as forgotten:
        forgotten.wait_for("after 3000 s at its prompt without input it is suspended")
        forgotten.write("echo kept >left; echo lost >/tmp/left; echo limit=$TMOUT; TMOUT=1")
        forgotten.wait_for("limit=3000")
        forgotten.end()
    site.kube.wait("trainingjobs", "idle", site.namespace, phase_is("Suspended"))
    with terminal(site, folder, "idle") as again:
        again.wait_for("idle was suspended: its terminal was idle")
        again.write("cat left; cat /tmp/left; exit")
        again.wait_for("kept")
        again.wait_for("No such file")
        again.end()
    site.finish("idle")
    with terminal(site, folder, "idle", "--delete") as last:
        last.wait_for("is deleted")
        last.end()
    site.kube.wait("trainingjobs", "idle", site.namespace, lambda job: job is None)
