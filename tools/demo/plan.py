"""What the demo is going to do and about how long each part takes on this machine.

The seconds are those measured on two cores; what is in the cache already is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.cluster import ClusterSpec, load
from tools.cluster.binaries import CONTROL_PLANE, build_estimate_seconds, missing
from tools.cluster.cache import cache_dir
from tools.cluster.model import Provider
from tools.cluster.packages import absent
from tools.cluster.providers import choose

_BINARIES = (*CONTROL_PLANE, "kubelet", "helm")
_PACKAGES_SECONDS = 20
_IMAGES_SECONDS = 150
_IMAGES_BESIDE_SECONDS = 30
_START_SECONDS = 35
_INSTALL_SECONDS = 10
_JOBS_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the demo."""

    text: str
    seconds: int

    def line(self) -> str:
        """As printed: the text and its time."""
        return f"{self.text:<76} {about(self.seconds):>9}"


def plan(spec: ClusterSpec) -> list[Part]:
    """The parts, in order.

    Raises:
        ClusterError: no cluster can be made here; the message names what is missing.
    """
    return [*_cluster(spec), *_always()]


def about(seconds: int) -> str:
    """A duration for people."""
    return f"~{seconds} s" if seconds < 100 else f"~{round(seconds / 60)} min"


def _cluster(spec: ClusterSpec) -> list[Part]:
    if load(spec.name) is not None:
        return [Part(text=f"use the cluster `{spec.name}` that already runs", seconds=5)]
    provider, reason = choose(spec)
    gpus = f"{spec.nodes} nodes with {spec.gpus_per_node} GPUs each (pretended), {spec.racks} racks"
    start = Part(text=f"start Kubernetes: {gpus}", seconds=_START_SECONDS)
    if provider is not Provider.NATIVE:
        return [Part(text=f"{start.text}, by {provider} ({reason})", seconds=180)]
    return [*made_once(), start]


def made_once() -> list[Part]:
    """What this machine lacks and has to be installed or built, once."""
    binaries = missing(_BINARIES)
    packages = absent()
    parts: list[Part] = []
    if packages:
        text = f"once: install Debian packages {', '.join(packages)}"
        parts.append(Part(text=text, seconds=_PACKAGES_SECONDS))
    if binaries:
        named = ", ".join(binary.name for binary in binaries[:3])
        more = f" and {len(binaries) - 3} more" if len(binaries) > 3 else ""
        text = f"once: download {named}{more}, or build from source"
        parts.append(Part(text=text, seconds=build_estimate_seconds(binaries)))
    if not any((cache_dir() / "images").glob("archive-*.tar")):
        beside = ", beside the build" if binaries else ""
        seconds = _IMAGES_BESIDE_SECONDS if binaries else _IMAGES_SECONDS
        text = f"once: make the images of nodes and pods{beside}"
        parts.append(Part(text=text, seconds=seconds))
    return parts


def _always() -> list[Part]:
    return [
        Part(text="install Drumline with `helm install`", seconds=_INSTALL_SECONDS),
        Part(
            text="train two jobs: one waits for the other, says why, then runs tensor-parallel",
            seconds=_JOBS_SECONDS,
        ),
    ]
