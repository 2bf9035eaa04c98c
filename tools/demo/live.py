"""Shows two jobs while they run: phases and reasons as they change, rank 0's lines as logged.

The API server is asked twice a second rather than watched: a poll survives anything, and what a
person can see does not change faster. Log lines come from `kubectl logs --follow`, one process a
pod, started when the pod trains and again should it have started too early.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.kube import Kube
from tools.cluster import Cluster, ClusterError
from tools.cluster.binaries import binary_path
from tools.demo.changes import FINISHED, glance, log_line, news
from tools.demo.screen import Screen
from tools.demo.site import NAMESPACE

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600
"""Without any change of any job or log line: something hangs."""

Json = dict[str, Any]


@dataclass(kw_only=True)
class Follower:
    """One pod's log, read to its end in a thread."""

    process: subprocess.Popen[str]
    thread: threading.Thread


@dataclass(kw_only=True)
class Audience:
    """What was seen of the jobs so far."""

    screen: Screen
    cluster: Cluster
    racks: Mapping[str, str]
    width: int
    statuses: dict[str, Json] = field(default_factory=dict)
    followers: dict[str, Follower] = field(default_factory=dict)
    last_news: float = field(default_factory=time.monotonic)
    lines_shown: dict[str, int] = field(default_factory=dict)

    def look(self, jobs: Mapping[str, Json]) -> None:
        """Take in the jobs as they are now."""
        for name, status in jobs.items():
            for sentence in news(self.statuses.get(name, {}), status, racks=self.racks):
                self.tell(name, sentence)
            self.statuses[name] = status
            if status.get("phase") == "Running":
                self._follow(name, pod=f"{name}-0-g{status['generation']}")
        self.screen.live("   ".join(glance(name, status) for name, status in jobs.items()))

    def tell(self, name: str, sentence: str) -> None:
        """A line about one job."""
        self.last_news = time.monotonic()
        self.screen.say(f"{name:<{self.width}}  {sentence}")

    def close(self) -> None:
        """End the log followers; those of finished pods have ended by themselves."""
        for follower in self.followers.values():
            if all(status.get("phase") in FINISHED for status in self.statuses.values()):
                follower.thread.join(timeout=10)
            follower.process.terminate()
            follower.process.wait()
            follower.thread.join()
        self.screen.live("")

    def _follow(self, name: str, *, pod: str) -> None:
        running = self.followers.get(pod)
        if running is not None and (running.process.poll() is None or pod in self.lines_shown):
            return
        process = subprocess.Popen(
            [
                *(str(binary_path("kubectl")), f"--kubeconfig={self.cluster.kubeconfig}"),
                *("logs", "--follow", "--namespace", NAMESPACE, pod),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which ends it
        )
        thread = threading.Thread(target=self._read, args=(name, pod, process), daemon=True)
        self.followers[pod] = Follower(process=process, thread=thread)
        thread.start()

    def _read(self, name: str, pod: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines_shown[pod] = self.lines_shown.get(pod, 0) + 1
            text = log_line(line)
            if text is not None:
                self.tell(name, text)


def watch(
    cluster: Cluster, names: Sequence[str], *, racks: Mapping[str, str], screen: Screen
) -> dict[str, Json]:
    """Show the jobs until each of them succeeded or failed; returns their last statuses.

    Raises:
        ClusterError: nothing happened for very long; says what was seen last.
    """
    with _audience(cluster, names, racks=racks, screen=screen) as audience:
        kube = Kube(cluster.kubeconfig)
        while True:
            results = {
                job["metadata"]["name"]: job.get("status", {})
                for job in kube.list("trainingjobs", NAMESPACE)
                if job["metadata"]["name"] in names
            }
            audience.look({name: results[name] for name in names if name in results})
            for name in names:
                if name not in results and name in audience.statuses:
                    raise ClusterError(f"the job {name} was deleted while it ran")
            if len(results) == len(names) and all(
                status.get("phase") in FINISHED for status in results.values()
            ):
                return results
            if time.monotonic() - audience.last_news > _PATIENCE_SECONDS:
                raise ClusterError(_stuck(audience))
            time.sleep(_POLL_SECONDS)


@contextmanager
def _audience(
    cluster: Cluster, names: Sequence[str], *, racks: Mapping[str, str], screen: Screen
) -> Iterator[Audience]:
    audience = Audience(
        screen=screen, cluster=cluster, racks=racks, width=max(len(name) for name in names)
    )
    try:
        yield audience
    finally:
        audience.close()


def _stuck(audience: Audience) -> str:
    seen = "; ".join(glance(name, status) for name, status in audience.statuses.items())
    return f"nothing happened for {_PATIENCE_SECONDS} s; seen last: {seen or 'no job at all'}"
