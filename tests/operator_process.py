"""The real operator as a process of its own, outside any cluster: to be killed and measured."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kube import Json, Kube
from tests.patience import HANG_SECONDS

ROOT = Path(__file__).parents[1]
CHART_FILES = tuple(ROOT / "helm/drumline/files" / part for part in ("crds", "policies"))
SIGNING_KEY = "a key for tests that is long enough"
_numbers = itertools.count()


def prepare(kube: Kube) -> None:
    """What the chart brings besides the operator: CRDs, their policy, priority class, namespace."""
    for folder in CHART_FILES:
        for path in sorted(folder.glob("*.yaml")):
            for manifest in yaml.safe_load_all(path.read_text()):
                kube.ensure(manifest)
    for plural in ("trainingjobs", "trainingqueues", "gpupools"):
        kube.wait("customresourcedefinitions", f"{plural}.drumline.dev", None, is_established)
    kube.ensure(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "drumline-training-pods"},
            "value": 1_000_000,
            "preemptionPolicy": "Never",
        }
    )
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drumline-system"}})


def is_established(crd: Json | None) -> bool:
    """Whether objects of this kind can be made."""
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@dataclass(kw_only=True)
class OperatorProcess:
    """`python -m drumline` against a test's API server; can be killed and started again."""

    kubeconfig: Path
    folder: Path
    http_port: int = 0
    log_level: str = "debug"
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further DRUMLINE_ variables."""
    program: tuple[str, ...] = ("drumline",)
    """The module that runs it, and its arguments."""
    tree: Path = ROOT
    """The source tree that it is run from."""
    signing_keys: tuple[str, ...] = (SIGNING_KEY,)
    """The key, and the one before it while keys are changed."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log is appended to `folder/operator.log`."""
        key = self._mount_keys()
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": f"{self.tree / 'operator'}:{self.tree / 'trainer'}",
            "DRUMLINE_SIGNING_KEY_FILE": str(key),
            "DRUMLINE_HTTP_HOST": "127.0.0.1",
            "DRUMLINE_HTTP_PORT": str(self.http_port),
            "DRUMLINE_POD_NAME": f"operator-{next(_numbers)}",
            "DRUMLINE_LOG_LEVEL": self.log_level,
            **self.settings,
        }
        with (self.folder / "operator.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.program], env=environment, stdout=log, stderr=log
            )

    def _mount_keys(self) -> Path:
        """As the kubelet mounts the Secret: the key, and `previous` beside it."""
        key, previous = self.folder / "signing-key", self.folder / "previous"
        key.write_text(self.signing_keys[0])
        previous.unlink(missing_ok=True)
        for text in self.signing_keys[1:]:
            previous.write_text(text)
        return key

    def kill(self) -> None:
        """SIGKILL: nothing is released, nothing is said."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=HANG_SECONDS)
        self.process = None
        return code

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every structured line so far."""
        lines = (self.folder / "operator.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def errors_in(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a log has of errors, but that Kopf will ask again."""
    errors = [str(line.get("event", "")) for line in lines if line.get("level") == "error"]
    return [error for error in errors if "will retry" not in error]
