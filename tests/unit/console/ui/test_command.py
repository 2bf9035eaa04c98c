"""`drumline ui` as a process: how a browser gets the address."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.patience import HANG_SECONDS

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "x"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


def test_a_browser_in_the_foreground_gets_the_address_by_a_private_file(tmp_path: Path) -> None:
    config, opened, ended = (tmp_path / name for name in ("config", "opened", "ended"))
    config.write_text(json.dumps(KUBECONFIG))
    for pipe in (opened, ended):
        os.mkfifo(pipe)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {opened}\ncat {ended}\n')
    browser.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "drumline", "ui", "--kubeconfig", str(config)],
        env={**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address: str = process.stdout.readline().strip()
        arguments = opened.read_text()  # waits until the browser runs
        assert urlsplit(address).path.strip("/") not in arguments
        page = Path(unquote(urlsplit(arguments).path))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        named = re.search('url=(.*)"', page.read_text())
        assert named is not None
        assert named[1] == address
        parts = urlsplit(address)
        page_server = HTTPConnection(parts.netloc, timeout=HANG_SECONDS)
        page_server.request("GET", f"{parts.path}asset/ui.css")
        assert page_server.getresponse().status == 200
        page_server.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECONDS) == 0  # while the browser still runs
        assert not page.exists()
        ended.write_text("")
