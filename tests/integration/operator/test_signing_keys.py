"""The signing key is changed as docs/signing-key.md says, and no running job notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.lifecycle.model.signing_keys import key_id
from drumline_contract import Progress
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube, phase_is
from tests.operator_process import SIGNING_KEY, OperatorProcess, errors_in

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]

NEW_KEY = "another key for tests that is as long"
STANDING = ("phase", "generation", "restarts", "signingKey")


def key_of(gang: Trainers) -> str:
    return gang.site.job(gang.name)["status"]["signingKey"]


def is_heard(gang: Trainers, *, step: int) -> None:
    """The operator has what the gang's agent says from now on: it signs with the gang's key."""
    leader = gang.agents[f"{gang.name}-0-g1"]
    leader.change(progress=Progress(step=step, total_steps=100, checkpoint_step=step))

    def saved(job: Json | None) -> bool:
        status = (job or {}).get("status", {})
        return status.get("checkpoint", {}).get("step") == step

    gang.site.wait(gang.name, saved)


def standing(gang: Trainers) -> tuple[dict[str, Any], dict[str, str]]:
    """What a change of the key must not change."""
    status = gang.site.job(gang.name)["status"]
    return {name: status.get(name) for name in STANDING}, gang.uids()


def test_a_key_is_changed_under_running_jobs(api: Kube, site: Site, tmp_path: Path) -> None:
    settings = {"DRUMLINE_PROGRESS_SECONDS": "1"}
    operator = OperatorProcess(kubeconfig=api.kubeconfig, folder=tmp_path, settings=settings)
    operator.start()
    with Trainers(site, "older") as older, Trainers(site, "newer", signing_key=NEW_KEY) as newer:
        try:
            older.submit(nodes=2)
            older.attend("0-g1", "1-g1")
            older.running(1)
            before = standing(older)
            _restart(operator, NEW_KEY, SIGNING_KEY)
            newer.submit(nodes=2)
            newer.attend("0-g1", "1-g1")
            newer.running(1)
            is_heard(older, step=30)
            assert standing(older) == before
            assert (key_of(older), key_of(newer)) == (
                key_id(SIGNING_KEY.encode()),
                key_id(NEW_KEY.encode()),
            )
            older.site.end_pods("older")
            site.wait("older", phase_is("Succeeded"))
            before = standing(newer)
            _restart(operator, NEW_KEY)
            is_heard(newer, step=40)
            assert standing(newer) == before
        finally:
            operator.stop()
    assert before[0]["phase"] == "Running"
    assert errors_in(operator.log) == []


def _restart(operator: OperatorProcess, *keys: str) -> None:
    operator.stop()
    operator.signing_keys = keys
    operator.start()
