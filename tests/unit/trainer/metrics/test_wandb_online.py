"""The real client of W&B sends a run to a server on loopback, and continues it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tools.cluster.ports import LOOPBACK

ROOT = Path(__file__).parents[4]
KEY = "0123456789abcdef" * 2 + "01234567"
AUTHORIZED = f"Basic {base64.b64encode(f'api:{KEY}'.encode()).decode()}"
RUN = """
import sys
from pathlib import Path
from drumline_trainer.metrics.sinks import open_sinks
from tests.unit.trainer.metrics.test_sinks import configured, record

config = configured(wandb=True, wandb_online=True, json_lines=False)
(sink,) = open_sinks(config, folder=Path(sys.argv[1]))
sink.write(record(int(sys.argv[2])))
sink.close()
"""


class Server(ThreadingHTTPServer):
    """A server of W&B with one run, as far as the client asks."""

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.runs: set[str] = set()
        self.rows: list[dict[str, Any]] = []
        """Rows of the run's history, at their offsets."""
        self.project = ""
        self.hosts: set[str | None] = set()
        self.files: set[str] = set()

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of GraphQL."""
        self.hosts.add(given.get("host"))
        whole = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": "team"}}
        if "upsertBucket" in query:
            if given.get("name"):
                self.runs.add(given["name"])
                self.project = given["project"]
            name = next(iter(self.runs))
            bucket = {"id": "r", "name": name, "displayName": "", "config": "{}", "project": whole}
            return {"upsertBucket": {"bucket": bucket, "inserted": not self.rows}}
        if "createRunFiles" in query:
            self.files.update(given["files"])
            here = f"http://{LOOPBACK}:{self.server_port}/file"
            files = [{"name": name, "uploadUrl": here} for name in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        lines = {f"{kind}LineCount": 0 for kind in ("log", "events")}
        bucket = {
            "id": "r",
            "name": given.get("name"),
            "config": "{}",
            "summaryMetrics": "{}",
            "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]),
            "eventsTail": "[]",
            # A run without it has never begun.
            "wandbConfig": json.dumps({"t": 1}),
            "historyLineCount": len(self.rows),
            **lines,
        }
        return {"model": {**whole, "bucket": bucket if self.rows else None}}

    def take(self, stream: dict[str, Any]) -> None:
        """Store rows of the history."""
        history = stream.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            # A piece that is sent again has the offset that it had.
            del self.rows[history["offset"] :]
            self.rows += [json.loads(line) for line in history["content"]]


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride] - narrower

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's
        """Print nothing."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        # The client's own telemetry comes without a key.
        if not self.path.startswith(("/graphql", "/files/")):
            self.send({})
        elif self.headers.get("Authorization") != AUTHORIZED:
            self.send({}, status=HTTPStatus.UNAUTHORIZED)
        elif self.path == "/graphql":
            asked = json.loads(body)
            self.send({"data": self.server.answer(asked["query"], asked.get("variables") or {})})
        else:
            self.server.take(json.loads(body))
            self.send({})

    def send(self, answer: dict[str, Any], *, status: int = HTTPStatus.OK) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as served:
        thread = Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def run(server: Server, folder: Path, *, step: int, key: str = KEY) -> str:
    """Write one step in a process of its own, and return the last line of its errors."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "operator", "trainer")),
        "WANDB_API_KEY": key,
        "WANDB_BASE_URL": f"http://{LOOPBACK}:{server.server_port}",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder / "metrics"), str(step)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode or key != KEY, done.stderr
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.extended
def test_a_run_that_continues_appends_to_its_curves(server: Server, tmp_path: Path) -> None:
    for step in (10, 20):
        run(server, tmp_path, step=step)
    assert [(row["_step"], row["train/loss"]) for row in server.rows] == [(10, 2.5), (20, 2.5)]
    assert (len(server.runs), server.project) == (1, "drumline")
    assert server.hosts <= {None, ""}
    assert server.files == {"config.yaml", "wandb-summary.json"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_a_key_that_the_server_refuses_is_a_configuration_error(
    server: Server, tmp_path: Path
) -> None:
    error = run(server, tmp_path, step=10, key="f" * 40)
    assert "ConfigError: metrics.wandb_online: W&B does not take the run" in error
    assert "WANDB_API_KEY" in error
    assert not server.rows
