"""A context that leads to no Kubernetes, objects that no decoder can read, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from drumline_cli.program import main
from tests.patience import HANG_SECONDS
from tests.texts import missing
from tests.unit.cli.manifests import a_manifest, kubeconfig

ROOT = Path(__file__).parents[3]
COMMANDS = (
    *(
        (name, "x")
        for name in ("report", "logs", "shell", "hold", "stop", "resume", "retry", "clone", "why")
    ),
    *(("list",), ("queue",), ("doctor",), ("decide",), ("sweep", "x"), ("diff", "x", "y")),
    ("port-forward", "x", "80"),
    ("run", "--image", "i", "--no-code", "-d", "--", "python", "x.py"),
)
ANSWERS = {
    "a page": b"<html>login</html>",
    "another service": b"{}",
    "null": b"null",
    "no objects": b'{"kind":"List","metadata":{},"items":[5]}',
}


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may leave before it has read the whole answer."""


@contextmanager
def server(answer: bytes, folder: Path) -> Iterator[str]:
    """A server that gives one answer to all requests, as the path of its kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            del format, args

    with Server(("127.0.0.1", 0), Handler) as listener:
        thread = Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"127.0.0.1:{listener.server_port}"
        (folder / "address").write_text(address)
        try:
            yield str(kubeconfig(folder, f"http://{address}"))
        finally:
            listener.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_is_no_kubernetes_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    with server(ANSWERS[answer], tmp_path) as config:
        for words in COMMANDS:
            # an empty list is a good answer for those who list
            code = main(["--kubeconfig", config, *words])
            error = capsys.readouterr().err.splitlines()
            assert code == 0 or [line[:10] for line in error] == ["drumline: "], words


def test_a_proxy_of_the_environment_is_asked_and_its_password_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(b"", tmp_path):
        address = (tmp_path / "address").read_text()
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@{address}")
        monkeypatch.setenv("NO_PROXY", "")
        config = str(kubeconfig(tmp_path, "https://api.example"))
        assert main(["--kubeconfig", config, "list"]) != 0
    error = capsys.readouterr().err
    # the server knows no CONNECT
    assert not missing(error, "501", address)
    assert "hunter2" not in error


@pytest.mark.parametrize("words", [("report", "llama"), ("logs", "llama"), ("stop", "llama")])
def test_a_job_that_is_nested_deep_can_still_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    job = a_manifest()
    job["spec"]["trainer"] = {"overrides": {"model": "HERE"}}
    deep = json.dumps(job).replace('"HERE"', "[" * 9_000 + "]" * 9_000)
    with server(deep.encode(), tmp_path) as config:
        code = main(["--kubeconfig", config, *words])
    shown = capsys.readouterr()
    assert "llama" in shown.out + shown.err
    assert code in (0, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "-n", "a/b"), "--namespace 'a/b'"),
        (("logs", "x", "-n", ".."), "--namespace '..'"),
        (("stop", "x", "-n", "Team"), "--namespace 'Team'"),
        (("logs", ".."), "'..' is not a valid object name"),
        (("retry", ""), "'' is not a valid object name"),
        # Each would be another path of the API server: a status, another kind.
        (("hold", "llama/status"), "'llama/status' is not a valid object name"),
        (("clone", "llama/status"), "'llama/status' is not a valid object name"),
        (("report", "a/b"), "'a/b' is not a valid object name"),
        (("stop", "trainingjob.drumline.dev/llama"), "write the name alone: llama"),
        (("logs", "Llama"), "want lower case letters"),
    ],
)
def test_a_text_that_is_no_name_is_refused_before_the_cluster_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    assert main(["--kubeconfig", str(config), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_certificate_that_is_missing_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = kubeconfig(tmp_path, "https://127.0.0.1:1")
    config.write_text(
        config.read_text().replace("server:", "certificate-authority: ca\n    server:")
    )
    assert main(["--kubeconfig", str(config), "list"]) == 2
    assert str(tmp_path / "ca") in capsys.readouterr().err


@pytest.mark.parametrize("words", [("list",), ("doctor",), ("logs", "x")])
def test_ctrl_c_ends_a_command_without_a_traceback(tmp_path: Path, words: Sequence[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = drumline("--kubeconfig", str(config), *words)
        # the request has been sent: the command waits for the answer
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(HANG_SECONDS)
            connection.recv(1)
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, output, error) == (130, b"", b"")


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        process = drumline("completion", "bash", stdout=full)
        _, error = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert error == b"drumline: standard output: No space left on device\n"


def drumline(*words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    path = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"
    return subprocess.Popen(
        [sys.executable, "-m", "drumline", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
