"""A spec that no server asked about is refused before it gets a GPU, and never where it runs."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.lifecycle.plan.acceptance import has_same_verdict, is_queued, judge
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import ConditionType, Reason
from tests.builders import EPOCH, T0, a_job, admitted, observed, ready_pods, running
from tests.texts import missing

TEMPLATE = {"image": "i"}
BROKEN: dict[str, dict[str, Any]] = {
    "spec: exactly one of trainer and template": {"trainer": {}, "template": TEMPLATE},
    "spec.checkpoint: checkpoint needs": {
        "template": TEMPLATE,
        "checkpoint": {"claimName": "saves"},
    },
    "spec.nodes: nodes x gpusPerNode exceeds": {
        "template": TEMPLATE,
        "nodes": 10_000,
        "gpusPerNode": 64,
    },
    "spec.gpuPools: gpuPool and gpuPools": {"gpuPool": "a", "gpuPools": ["a", "b"]},
    "spec.gpuPools: gpuPools: a pool is listed twice": {"gpuPools": ["a", "a"]},
    "spec.topology.slices: topology.slices": {
        "topology": {"slices": [{"level": "rack", "nodes": 3}]}
    },
    "spec.minNodes: minNodes must be": {"minNodes": 3, "checkpoint": {"claimName": "saves"}},
    "spec.minNodes: minNodes needs": {"minNodes": 1},
    "spec.resources: resources: GPUs": {"resources": {"nvidia.com/gpu": 8}},
    "spec.resources: resources: names": {"resources": {"ram": 8}},
    "spec.resources: resources: every": {"resources": {"cpu": 0}},
    "spec.trainer.globalBatchSize": {"trainer": {"globalBatchSize": 3}},
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_rule_that_no_server_asked_is_asked_here(said: str) -> None:
    job = a_job(**BROKEN[said])
    verdict = judge(job.spec)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.CONFIG_REFUSED
    assert verdict.message.startswith(said)
    assert not is_queued(job)


def test_a_job_that_waits_says_which_rule_its_spec_breaks() -> None:
    status = plan_job(a_job(minNodes=1), observed(), now=T0, epoch=EPOCH).status
    assert status is not None
    assert is_true(status, ConditionType.INVALID_CONFIG)
    assert not missing(status.message or "", "spec.minNodes")


def test_a_job_that_runs_is_not_ended_by_a_rule_that_is_newer() -> None:
    job = running(admitted(a_job(minNodes=2)))
    assert isinstance(judge(job.spec), Refusal)
    assert plan_job(job, observed(*ready_pods(job)), now=T0 + 1, epoch=EPOCH) == JobPlan()


def test_resources_are_judged_again_when_they_change() -> None:
    before, after = a_job().spec, a_job(resources={"ram": 8}).spec
    assert not has_same_verdict(before, after)
    assert isinstance(judge(before), Schedulable)


@pytest.mark.parametrize(
    ("patterns", "complaint"),
    [
        ([r"step (?P<step>\d+)", "(?P<loss>a"], "patterns[1]: pattern '(?P<loss>a', character 10"),
        ([r"(?P<step>\d+)(?P<lr>.+)"], "patterns[0]: '(?P<step>\\\\d+)(?P<lr>.+)' has a group lr"),
        ([r"(?P<step>\d+)", "loss"], "patterns[1]: 'loss' has no named group"),
    ],
)
def test_a_pattern_that_the_agent_cannot_read_is_refused_before_a_gpu_is_held(
    patterns: list[str], complaint: str
) -> None:
    template = {"image": "i", "launch": "PerGpu", "command": ["train"]}
    verdict = judge(a_job(template=template | {"progress": {"patterns": patterns}}).spec)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.CONFIG_REFUSED
    assert verdict.message.startswith(f"template.progress.{complaint}")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ({"command": ["torchrun", "train.py"]}, "this one begins with 'torchrun'"),
        ({"command": ["python3", "-c"], "args": ["1"]}, "this one goes on with '-c'"),
        ({"command": ["python3"], "args": ["train"]}, "this one goes on with 'train'"),
        (
            {"command": ["python3", "train.py"], "launch": "Direct"},
            "template.preload: launch must be",
        ),
    ],
)
def test_a_command_that_cannot_be_preloaded_is_refused_before_a_gpu_is_held(
    template: dict[str, Any], complaint: str
) -> None:
    given = {"image": "i", "launch": "PerGpu", "preload": ["torch"], **template}
    verdict = judge(a_job(template=given).spec)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.CONFIG_REFUSED
    assert complaint in verdict.message


def test_arguments_of_a_python_program_may_stand_in_either_list() -> None:
    template = {"image": "i", "launch": "PerPod", "preload": ["torch"]}
    template |= {"command": ["/env/bin/python3.11", "-u"], "args": ["train.py", "-c"]}
    assert isinstance(judge(a_job(template=template).spec), Schedulable)
