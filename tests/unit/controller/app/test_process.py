"""The operator's thread, and the late import of Kopf beside it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drumline.app.process import YOUNG_OBJECTS, OperatorThread
from tests.operator_process import ROOT, SIGNING_KEY
from tests.patience import HANG_SECONDS

UNREACHABLE = {
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {"token": "any"}}],
}
UNSETTLED = """
import gc, sys
from drumline.__main__ import main
status = main(["operator"])
print("kopf" in sys.modules, status, gc.get_threshold()[0])
"""
SETTLED = """
import gc, os, sys
from drumline.app import process
from drumline.app.operator import Operator
from drumline.kube.credentials import discover
from drumline.settings import from_environment
operator = Operator(from_environment(os.environ), credentials=discover(os.environ))
operator.settled.set()
def credentials():
    print("kopf:", "kopf" in sys.modules)
    print("frozen:", gc.get_freeze_count() > 0)
    operator.stop()
    return discover(os.environ)
process.run(operator, credentials=credentials, identity="any", installation="")
print("client:", "kubernetes" in sys.modules)
import kubernetes
"""


def environment(folder: Path) -> dict[str, str]:
    """An operator that finds its signing key, and no API server."""
    (folder / "kubeconfig").write_text(json.dumps(UNREACHABLE))
    (folder / "key").write_text(SIGNING_KEY)
    return {
        **os.environ,
        "KUBECONFIG": str(folder / "kubeconfig"),
        "DRUMLINE_SIGNING_KEY_FILE": str(folder / "key"),
        "DRUMLINE_HTTP_HOST": "127.0.0.1",
        "DRUMLINE_HTTP_PORT": "0",
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
    }


def test_a_process_that_cannot_decide_yet_ends_on_a_signal_without_kopf(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", UNSETTLED],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any('"operator_started"' in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=HANG_SECONDS)
    assert output == f"False 0 {YOUNG_OBJECTS}\n"


def test_kopf_is_loaded_without_the_client_that_it_would_log_in_through(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTLED],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    lines = done.stdout.splitlines()  # log lines are among them
    assert {"kopf: True", "client: False", "frozen: True"} <= set(lines)


def test_the_c_library_gives_freed_memory_back() -> None:
    """Most of 100 MB is freed between blocks that stay, as texts of lists are."""
    code = (
        "import sys; from drumline.app.process import give_back_memory\n"
        "def pages(): return int(open('/proc/self/statm').read().split()[1])\n"
        "assert sys.argv[1] == 'plain' or give_back_memory()\n"
        "large = bytes([1]) * 10_000_000; del large\n"
        "before = pages()\n"
        "blocks = [bytes([1]) * 200_000 for _ in range(500)]\n"
        "stay = blocks[::50]; del blocks\n"
        "print(pages() - before)\n"
    )
    kept = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", code, mode],
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=HANG_SECONDS,
            ).stdout
        )
        for mode in ("plain", "bounded")
    }
    assert kept["bounded"] < 2000 < kept["plain"], "pages of 4 KiB"


async def test_work_is_done_in_the_operator_s_thread() -> None:
    stop = asyncio.Event()

    async def operate() -> None:
        await stop.wait()

    async def where() -> str:
        return threading.current_thread().name

    thread = OperatorThread(operate)
    thread.start()
    assert await thread.run(where()) == "operator"
    thread.call(stop.set)
    thread.join()
    assert thread.ended.is_set()
    thread.call(stop.set)  # a late call is nobody's


def test_what_ended_the_operator_ends_the_process() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("the signing key cannot be read")

    thread = OperatorThread(fail)
    thread.start()
    with pytest.raises(OSError, match="signing key"):
        thread.join()
