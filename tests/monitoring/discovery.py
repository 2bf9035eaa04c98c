"""Prometheus' discovery of pods, for a build that has none: Debian's is without Kubernetes.

What `kubernetes_sd_configs` with `role: pod` finds is written to a file that Prometheus watches,
with the same labels, so that the chart's rules for them are applied by Prometheus as they are
(https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kube import Json, Kube

_LOOK_SECONDS = 1.0


class PodDiscovery:
    """Keeps the files of all scrape jobs up to date while it is entered.

    Args:
        kube: the API server; a thread's own.
        folder: for the files.
    """

    def __init__(self, kube: Kube, folder: Path) -> None:
        self._kube = kube
        self._folder = folder
        self._namespaces: dict[Path, list[str]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def translated(self, scrape: Json) -> Json:
        """A scrape job of the chart with its discovery by file."""
        scrape = dict(scrape)
        (discovery,) = scrape.pop("kubernetes_sd_configs")
        assert discovery.pop("role") == "pod"
        file = self._folder / f"{scrape['job_name']}.json"
        self._namespaces[file] = discovery.pop("namespaces", {}).get("names", [])
        assert not discovery, f"this does not know {discovery}"
        return {**scrape, "file_sd_configs": [{"files": [str(file)]}]}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            with suppress(OSError):  # the API server is stopped for a while
                self._write(self._kube.list("pods"))

    def _write(self, pods: list[Json]) -> None:
        for file, namespaces in self._namespaces.items():
            targets = [
                target
                for pod in pods
                if not namespaces or pod["metadata"]["namespace"] in namespaces
                for target in _targets(pod)
            ]
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(targets))
            fresh.replace(file)


def _targets(pod: Json) -> Iterator[dict[str, Any]]:
    """One for each port of each container."""
    metadata, status = pod["metadata"], pod["status"]
    if not status.get("podIP"):
        return
    shared = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_phase": status.get("phase", ""),
        "pod_ip": status["podIP"],
        "pod_node_name": pod["spec"].get("nodeName", ""),
        **{
            f"pod_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value
            for name, value in metadata.get("labels", {}).items()
        },
    }
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            labels = {
                **shared,
                "pod_container_name": container["name"],
                "pod_container_port_name": port.get("name", ""),
                "pod_container_port_number": str(port["containerPort"]),
            }
            yield {
                "targets": [f"{status['podIP']}:{port['containerPort']}"],
                "labels": {f"__meta_kubernetes_{name}": value for name, value in labels.items()},
            }
