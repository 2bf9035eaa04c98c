"""How kstatus reads an object of a kind that it does not know: its rules, in its order.

Flux, Argo CD and `kpt live` decide by it. Source: sigs.k8s.io/cli-utils, pkg/kstatus/status,
`checkGenericProperties` and `checkReadyCondition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kstatus(document: Mapping[str, Any]) -> str:
    """`Terminating`, `InProgress`, `Failed` or `Current`."""
    metadata, status = document["metadata"], document.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return "InProgress"
    truths = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    if truths.get("Reconciling") == "True":
        return "InProgress"
    if truths.get("Stalled") == "True":
        return "Failed"
    return "Current" if truths.get("Ready", "True") == "True" else "InProgress"
