"""GPU-seconds until now are those of the operator's own ledger."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from drumline.lifecycle.incidents.gpu_seconds import account_at
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.overview.held import STATES, held_gpu_seconds, stays_of
from drumline.overview.objects import JobObject
from drumline_api.trainingjob import TrainingJob
from tests.unit.overview.objects import NOW, a_job, at

AMOUNTS = st.integers(0, 10**9)
INDICES = st.lists(st.integers(0, 3), unique=True, max_size=2)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": []}
    if draw(st.booleans()):
        status["gpuSeconds"] = {"until": at(draw(st.integers(-5000, 50)))}
        status["gpuSeconds"] |= {state: draw(AMOUNTS) for state in STATES}
        if draw(st.booleans()):
            until, gpus = status["gpuSeconds"]["until"], draw(st.sampled_from([8, 16, 32]))
            stay = {"since": at(-6000), "until": until, "gpus": gpus}
            status["gpuSeconds"] |= {"stays": [stay]}
    if draw(st.booleans()):
        status["finishedAt"] = at(50)
    if draw(st.booleans()):
        lost = draw(INDICES)
        status["assignment"] = {
            "gpuPool": "gpus",
            "nodes": ["a", "b", "c", "d"],
            "lost": lost,
            "joining": [index for index in draw(INDICES) if index not in lost],
        }
    for kind in draw(st.lists(st.sampled_from(["Running", "Recovering"]), unique=True)):
        status["conditions"].append(
            {
                "type": kind,
                "status": draw(st.sampled_from(["True", "False"])),
                "reason": "Training",
                "message": "",
                "lastTransitionTime": at(-10),
            }
        )
    return a_job("llama", spec={"nodes": 4, "gpusPerNode": 8}, status=status)


@given(jobs(), st.floats(0, 5000))
def test_the_figures_are_those_of_the_ledger(manifest: dict[str, Any], later: float) -> None:
    job = TrainingJob.model_validate(manifest)
    assert job.status is not None
    account = account_at(job.spec, job.status, now=NOW + later)
    expected = {state: getattr(account, state) if account else 0 for state in STATES}
    read = msgspec.convert(manifest, JobObject)
    assert held_gpu_seconds(read, now=NOW + later) == expected


@given(jobs(), st.floats(0, 5000))
def test_the_stays_are_those_of_the_ledger(manifest: dict[str, Any], later: float) -> None:
    job = TrainingJob.model_validate(manifest)
    assert job.status is not None
    account = account_at(job.spec, job.status, now=NOW + later)
    kept = (account and account.stays) or []
    shown = stays_of(msgspec.convert(manifest, JobObject), now=NOW + later)
    assert [(stay.begins_at, stay.ends_at, stay.gpus) for stay in shown] == [
        (parse_timestamp(stay.since), parse_timestamp(stay.until), stay.gpus) for stay in kept
    ]
