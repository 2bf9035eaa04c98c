"""A real Prometheus as a process of its own, on loopback, and its answers to queries."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tools.cluster.ports import ReservedPorts
from tools.cluster.promtool import ensure_prometheus

Json = dict[str, Any]
_READY_SECONDS = 60.0


class QueryRefusedError(ValueError):
    """Prometheus does not take the query; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of an answer: labels, and values by their time."""

    labels: Mapping[str, str]
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A server that runs."""

    url: str

    def range(self, query: str, *, start: float, end: float, step: float) -> list[Series]:
        """The answer at every `step` seconds.

        Raises:
            QueryRefusedError: the query is wrong.
        """
        answer = self._get("query_range", query=query, start=start, end=end, step=step)
        return [_series(each["metric"], each["values"]) for each in answer["result"]]

    def samples(self, selector: str, *, seconds: int, at: float) -> list[Series]:
        """Every sample as it was scraped."""
        answer = self._get("query", query=f"{selector}[{seconds}s]", time=at)
        return [_series(each["metric"], each["values"]) for each in answer["result"]]

    def targets(self) -> list[Json]:
        """What it scrapes now."""
        return self._get("targets", state="active")["activeTargets"]

    def _get(self, path: str, **parameters: object) -> Any:
        try:
            query = urlencode(parameters)
            with urlopen(f"{self.url}/api/v1/{path}?{query}") as answer:  # noqa: S310 - http
                return json.load(answer)["data"]
        except HTTPError as error:
            raise QueryRefusedError(error.read().decode()) from None


def _series(labels: Mapping[str, str], values: list[list[Any]]) -> Series:
    pairs = tuple((float(at), float(value)) for at, value in values)
    return Series(labels=labels, values=pairs)


@contextmanager
def running(folder: Path, *, config: Json) -> Generator[Prometheus]:
    """Prometheus with its database in `folder/data`; stopped at the end, the database stays."""
    program = ensure_prometheus()
    assert program is not None, "no Debian to take Prometheus from"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    with ReservedPorts() as ports, (folder / "prometheus.log").open("wb") as log:
        port = ports.take()
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",  # a recording is older than any default
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            _wait_ready(f"http://127.0.0.1:{port}", process, log=folder / "prometheus.log")
            yield Prometheus(url=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_ready(url: str, process: subprocess.Popen[bytes], *, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 - on loopback
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-4000:]) from None
            time.sleep(0.05)  # it does not say when it listens
