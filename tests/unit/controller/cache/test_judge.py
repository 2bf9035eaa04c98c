"""Jobs of one burst that are equal are judged once."""

from __future__ import annotations

import asyncio

from drumline.controller.jobs.jobs import JobCache
from drumline.controller.jobs.judge import BATCH, Judge
from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline_contract.config import HardwareConfig
from tests.unit.controller.views import job_view

TRAINER = {"globalBatchSize": 16}
SMALL = PoolHardware(pool="small", config=HardwareConfig(gpu="H100"), refuses=False)


async def verdicts_of(jobs: list[Job], *, small: frozenset[str] = frozenset()) -> dict[str, object]:
    """The verdict of each job by name; those in `small` may get another pool."""
    verdicts: dict[str, object] = {}

    def settle(job: Job, verdict: Schedulable | Refusal) -> None:
        verdicts[job.name] = verdict

    judge = Judge(settle=settle, hardware=lambda job: SMALL if job.name in small else None)
    for job in jobs:
        judge.add(job)
    running = asyncio.create_task(judge.run())
    await judge.wait_idle()
    running.cancel()
    assert not judge._known
    return verdicts


def listed(count: int) -> list[Job]:
    """Jobs of the bundled trainer, half of which have more nodes."""
    cache = JobCache(changed=lambda *_: None, forgotten=lambda *_: None, judge_later=lambda _: None)
    for number in range(count):
        name = f"job-{number}"
        view = job_view(name, uid=name, nodes=2 + number % 2, trainer=TRAINER, template=None)
        cache.on_job(None, view)
    return list(cache.all())


async def test_equal_jobs_of_a_burst_have_one_verdict() -> None:
    verdicts = await verdicts_of(listed(BATCH + 2))
    assert len(verdicts) == BATCH + 2
    assert verdicts[f"job-{BATCH}"] is verdicts["job-0"]
    assert verdicts["job-1"] is not verdicts["job-0"]


async def test_equal_jobs_with_other_gpus_have_another_verdict() -> None:
    first, _, second = listed(3)
    verdicts = await verdicts_of([first, second], small=frozenset({second.name}))
    hardware = [getattr(verdicts[job.name], "hardware", None) for job in (first, second)]
    assert hardware == [None, SMALL]
