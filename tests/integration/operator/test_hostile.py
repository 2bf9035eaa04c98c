"""What one tenant writes stops nobody: objects of a namespaced user against the real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import phase_is, reason_is

pytestmark = pytest.mark.usefixtures("operator")

NBSP = "\N{NO-BREAK SPACE}"
PIPELINE: dict[str, Any] = {"pipeline": 2}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_hostile_specs_say_what_is_wrong_and_another_job_runs(site: Site) -> None:
    trainers: dict[str, tuple[Any, str]] = {
        "hang": (
            {"global_batch_size": 9_000_000_000_000_000},
            "global_batch_size: must be at most",
        ),
        "zero": ({"global_batch_size": 1}, "global_batch_size: 1 does not split"),
        "deep": ({"a": nested(900)}, "trainer.overrides: nested more than 16 levels deep"),
        # of a larger one the API server itself takes many seconds to write a status
        "wide": ({"a": [[]] * 8000}, "trainer.overrides: 24007 bytes as JSON is over 16384"),
        "odd": ({"\x1b[2J": 1}, "[2J: unknown field"),
    }
    for name, (overrides, _) in trainers.items():
        trainer = {"globalBatchSize": 8, "parallelism": PIPELINE, "overrides": overrides}
        site.submit(name, nodes=2, gpusPerNode=4, trainer=trainer)
    site.submit("fine", nodes=1, gpusPerNode=8, user=f"ann{NBSP}lee")
    site.wait("fine", phase_is("Running"))
    for name, (_, said) in trainers.items():
        job = site.wait(name, reason_is("InvalidConfig"))
        assert said in job["status"]["message"]
        assert site.pods(name) == []
