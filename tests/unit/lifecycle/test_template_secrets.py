"""A template that names the token of a job: refused by the operator too."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan.acceptance import is_queued, refusal_of
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import ConditionType
from tests.builders import EPOCH, T0, a_job
from tests.texts import missing

TOKEN = "victim-1a2b3c4d-drumline-token"  # noqa: S105 - the name of a Secret


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"volumes": [{"name": "a", "secret": {"name": TOKEN}}]}, "volumes[a].secret"),
        (
            {
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": "token"}}}
                ]
            },
            "env[A].valueFrom.secretKeyRef",
        ),
        ({"imagePullSecrets": [TOKEN]}, "imagePullSecrets"),
        ({"envFrom": [{"prefix": "A_", "secretRef": {"name": TOKEN}}]}, "envFrom[0].secretRef"),
        (
            {
                "volumes": [
                    {"name": "a", "csi": {"driver": "d", "nodePublishSecretRef": {"name": TOKEN}}}
                ]
            },
            "volumes[a].csi.nodePublishSecretRef",
        ),
        (
            {
                "initContainers": [
                    {
                        "name": "fetch",
                        "command": ["env"],
                        "env": [
                            {
                                "name": "A",
                                "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": "token"}},
                            }
                        ],
                    }
                ]
            },
            "initContainers[fetch].env[A].valueFrom.secretKeyRef",
        ),
        (
            {
                "sidecars": [
                    {"name": "a", "image": "a"},
                    {
                        "name": "b",
                        "image": "b",
                        "envFrom": [{"prefix": "A_", "secretRef": {"name": TOKEN}}],
                    },
                ]
            },
            "sidecars[b].envFrom[0].secretRef",
        ),
        (
            {
                "sidecars": [
                    {
                        "name": "b",
                        "image": "b",
                        "env": [
                            {
                                "name": "A",
                                "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": "token"}},
                            }
                        ],
                    }
                ]
            },
            "sidecars[b].env[A].valueFrom.secretKeyRef",
        ),
    ],
)
def test_a_template_that_was_stored_before_the_rule_gets_a_condition_and_no_pods(
    fields: dict[str, Any], field: str
) -> None:
    job = a_job(template={"image": "thief:1", **fields})
    assert not is_queued(job)
    planned = plan_job(job, Observed(), now=T0, epoch=EPOCH)
    assert planned.status is not None
    assert is_true(planned.status, ConditionType.INVALID_CONFIG)
    assert not missing(planned.status.message, f"template.{field}", f"Secret {TOKEN}")


def test_other_secrets_are_the_namespace_s_own() -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
    volumes: list[Any] = [
        {"name": "a", "secret": {"name": "llama-1a2b3c4d"}},
        {"name": "b", "emptyDir": {}},
    ]
    template = {"image": "m", "env": env, "volumes": volumes, "imagePullSecrets": ["registry"]}
    assert refusal_of(a_job(template=template)) is None
