"""The operator as a Deployment that can be away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kube import Json, Kube
from tools.install import SYSTEM_NAMESPACE

DEPLOYMENT = "drumline-operator"
LABELS = "app.kubernetes.io/name=drumline"


@contextmanager
def away(kube: Kube) -> Iterator[None]:
    """Without an operator meanwhile; it is ready again afterwards."""
    scale(kube, 0)
    try:
        yield
    finally:
        scale(kube, 1)


def scale(kube: Kube, replicas: int) -> None:
    """Set how many run, and wait until they do."""
    kube.patch("deployments", DEPLOYMENT, {"spec": {"replicas": replicas}}, SYSTEM_NAMESPACE)
    kube.wait_all(
        "pods",
        SYSTEM_NAMESPACE,
        lambda pods: len(pods) == replicas and all(_ready(pod) for pod in pods),
        labels=LABELS,
    )


def _ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
