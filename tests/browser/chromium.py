"""Chromium without a window, as a process of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from tools.cluster.model import ClusterError
from tools.cluster.packages import ensure_command
from tools.cluster.progress import Progress

COMMAND: Final = "chromium-headless-shell"
"""100 MB to fetch, without the libraries of a desktop that the package `chromium` needs."""
_WITH_DESKTOP: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0"),
    # no name leads out of this machine, whatever a page asks for
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE *.localhost, EXCLUDE 127.0.0.1",
)


def absent() -> str | None:
    """Why there is no browser here, and none can be installed."""
    if _installed() or (os.geteuid() == 0 and shutil.which("apt-get")):
        return None
    return f"no Chromium is installed, and apt-get as root could install {COMMAND}"


def ensure() -> None:
    """Install one where there is none: six seconds and 100 MB.

    Raises:
        ClusterError: apt-get failed; the message has its last words.
    """
    if _installed() is None:
        ensure_command(COMMAND, package=COMMAND, progress=Progress(out=print))


@contextmanager
def running() -> Iterator[str]:
    """The installed browser; yields the address of its DevTools.

    Raises:
        ClusterError: it ended at once.
    """
    command = _installed()
    assert command is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [command, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": profile},
            start_new_session=True,  # Debian's command is a script that starts the browser
        )
        assert process.stderr is not None
        # what it says later is read too, so that its pipe never fills
        rest = threading.Thread(target=process.stderr.read)
        try:
            address = _address(process.stderr)
            rest.start()
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if rest.ident is not None:
                rest.join()
            process.stderr.close()


def _address(stderr: IO[str]) -> str:
    said: list[str] = []
    for line in stderr:
        said.append(line)
        if line.startswith("DevTools listening on "):
            return line.split()[-1]
    raise ClusterError(f"Chromium ended: {''.join(said)[-500:]}")


def _installed() -> str | None:
    paths = (shutil.which(name) for name in (COMMAND, *_WITH_DESKTOP))
    return next((path for path in paths if path), None)
