"""What a cycle's decisions and their lapse become: writes of status, seen by an API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.scheduler import committer as committer_module
from drumline.controller.scheduler.checked_starts import CheckedStarts
from drumline.controller.scheduler.committer import Committer
from drumline.controller.scheduler.unwritten_statuses import UnwrittenStatuses
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import SnapshotBuilder
from drumline.controller.workloads.evictions import ForeignEvictions
from drumline.controller.workloads.suspension import WorkloadSuspension
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.planner import plan_job
from drumline.lifecycle.plan.start_check import StartDoubt, StartRefusal
from drumline.telemetry.metrics import Metrics
from drumline_api.conditions import DisruptionKind, Phase, Reason
from drumline_api.jobstatus import PoolNodes, TrainingJobStatus
from drumline_api.trainingjob import GroupSpec
from drumline_scheduler.decisions import (
    Decisions,
    Move,
    MoveReason,
    Placed,
    Preemption,
    QueueEviction,
    QueueEvictionReason,
    Victim,
    VictimReason,
)
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    admitted,
    ended,
    observed,
    ready_pods,
    running,
    with_status,
)
from tests.patience import HANG_SECONDS
from tests.texts import missing

NOW = T0 + 60
VICTIM = running(admitted(a_job(name="victim")))
OTHER = replace(a_job(name="other"), uid="uid-other")


def asked_to_leave(*, by: Job) -> Job:
    """The victim with its notice."""
    status = transitions.disrupted(
        VICTIM,
        kind=DisruptionKind.PREEMPTION,
        by=by.key,
        by_uid=by.uid,
        message="gives way",
        deadline=NOW + 60,
        now=NOW - 1,
    )
    return with_status(VICTIM, status)


def broken_and_promised() -> Job:
    """A gang that runs, has lost a place, and has others kept while the victim leaves."""
    job = running(admitted(OTHER))
    job = with_status(
        job,
        transitions.members_lost(
            job, indices={1}, reason=Reason.POD_LOST, message="gone", now=T0 + 1
        ),
    )
    nodes = ("node-a", "node-c")
    words = {"reason": "WaitingForVictims", "message": "victim gives way"}
    return with_status(
        job, transitions.nominated(job, pool="h100", nodes=nodes, now=T0 + 2, **words)
    )


PREEMPTOR = broken_and_promised()


class Site:
    """A committer, what it has written, the status by job, and what it has announced."""

    def __init__(
        self,
        committer: Committer,
        written: dict[str, dict[str, Any]],
        announced: list[tuple[str, TrainingJobStatus]],
        scheduling: SnapshotBuilder,
    ) -> None:
        self.scheduling = scheduling
        self.committer = committer
        self.written = written
        self.announced = announced


def seen(job: Job) -> Observed:
    """All pods of the job, which have ended where its name says so."""
    if job.name != "ended":
        return observed(*ready_pods(job))
    return observed(*(replace(pod, end=ended()) for pod in ready_pods(job)))


@pytest.fixture
def refused() -> dict[str, StartRefusal | StartDoubt]:
    """By name: the jobs whose pods the API server would refuse."""
    return {}


@pytest.fixture
def going() -> dict[str, list[tuple[str, int]]]:
    """By name of a job whose start was checked: who leaves for it, and how many members of it."""
    return {}


@pytest.fixture
def together() -> dict[str, list[str]]:
    """Jobs that start together with a job whose start was checked, by its name."""
    return {}


@pytest.fixture
def before() -> dict[str, list[str]]:
    """Jobs that start before a job whose start was checked, with their members, by its name."""
    return {}


@pytest.fixture
def barriers() -> list[asyncio.Barrier]:
    """Barriers that each check of a start waits for."""
    return []


@pytest.fixture
def denied() -> dict[str, int]:
    """Number of refused status requests, by name of the job."""
    return {}


@pytest.fixture
async def site(
    *,
    denied: dict[str, int],
    refused: dict[str, StartRefusal | StartDoubt],
    going: dict[str, list[tuple[str, int]]],
    together: dict[str, list[str]],
    before: dict[str, list[str]],
    barriers: list[asyncio.Barrier],
) -> AsyncIterator[Site]:
    async def check(
        job: Job,
        *,
        replaces: bool,
        leaving: Iterable[Job],
        beside: Iterable[Job],
        promised: Iterable[Job],
    ) -> StartRefusal | StartDoubt | None:
        del replaces
        for barrier in barriers:
            await barrier.wait()
        before.setdefault(job.name, [])[:] = [f"{each.name} {each.members}" for each in promised]
        together[job.name] = [other.name for other in beside]
        going[job.name] = [(other.name, other.members) for other in leaving]
        return refused.get(job.name)

    written: dict[str, dict[str, Any]] = {}
    announced: list[tuple[str, TrainingJobStatus]] = []

    async def patch(request: web.Request) -> web.Response:
        *_, step = json.loads(await request.read())
        assert step["path"] == "/status"
        if (name := request.match_info["name"]) in denied:
            denied[name] += 1
            return web.json_response({"code": 422, "message": "a policy"}, status=422)
        written[request.match_info["name"]] = step["value"]
        return web.json_response({"metadata": {"uid": "uid", "resourceVersion": "2"}})

    app = web.Application()
    app.router.add_patch("/{before:.*}/trainingjobs/{name}/status", patch)
    runner = web.AppRunner(app)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        client = await stack.enter_async_context(KubeClient(credentials))
        state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
        committer = Committer(
            writer=StatusWriter(
                client=client,
                jobs=state.jobs,
                wake_scheduler=lambda: None,
                clock=time.monotonic,
                wall=lambda: NOW,
            ),
            foreign=ForeignEvictions(
                client=client,
                pools=(),
                is_tainted=lambda _: False,
                stays=lambda _uid, _until: None,
                members=lambda _: (),
                workloads=None,
                suspension=WorkloadSuspension(
                    client=client, recorder=EventRecorder(client, instance="test")
                ),
            ),
            pods=PodSettings(trainer_image="trainer:1", join_image="join:1"),
            epoch=EPOCH,
            signing_key="a1b2c3d4",
            preemption_seconds=60.0,
            metrics=Metrics(),
            job_events=JobEvents(EventRecorder(client, instance="test")),
            enqueue=lambda _: None,
            priority_of=lambda _: 0,
            share_of=lambda *_: None,
            settled_status=lambda job: (
                plan_job(job, seen(job), now=NOW, epoch=EPOCH).status or job.status
            ),
            announce=lambda job, status: announced.append((job.name, status)),
            starts=CheckedStarts(check=check, scheduling=state.scheduling),
            unwritten=UnwrittenStatuses(
                backoffs=state.scheduling.backoffs,
                job_events=JobEvents(EventRecorder(client, instance="test")),
            ),
        )
        yield Site(committer, written, announced, state.scheduling)


async def test_a_victim_of_a_broken_gang_keeps_leaving_while_that_waits(site: Site) -> None:
    assert await site.committer.withdraw([asked_to_leave(by=PREEMPTOR), PREEMPTOR], now=NOW)
    assert site.written == {}


FINISHED = {"finished_at": timestamp(NOW - 10)}


@pytest.mark.parametrize(
    "over",
    [
        with_status(PREEMPTOR, PREEMPTOR.status.model_copy(update=FINISHED)),
        replace(PREEMPTOR, deleting=True),
    ],
    ids=["finished", "being deleted"],
)
async def test_no_job_leaves_for_a_job_that_is_over(site: Site, over: Job) -> None:
    assert await site.committer.withdraw([asked_to_leave(by=over), over], now=NOW)
    assert site.written.keys() == {"victim"}
    assert "disruption" not in site.written["victim"]


async def test_whoever_was_to_move_and_cannot_may_stay(site: Site) -> None:
    job = asked_to_leave(by=VICTIM)
    job = with_status(
        job, transitions.nominated_for_move(job.status, pool="h100", nodes=("node-x", "node-y"))
    )
    jobs = {job.uid: job}
    assert await site.committer.withdraw([job], now=NOW)
    assert site.written == {}
    assert await site.committer.carry_out(Decisions(stay=(job.uid,)), jobs=jobs, now=NOW)
    status = site.written["victim"]
    assert not {"disruption", "nominated"} & status.keys()
    assert status["assignment"]["nodes"] == ["a", "b"]


async def test_a_job_whose_status_is_refused_is_left_alone_for_longer_each_time(
    site: Site, denied: dict[str, int]
) -> None:
    leaving = asked_to_leave(by=VICTIM)
    bad, job = replace(leaving, name="bad", uid="bad"), leaving
    jobs, decisions = {each.uid: each for each in (bad, job)}, Decisions(stay=("bad", job.uid))
    denied["bad"] = 0
    asked: list[int] = []
    for now in (NOW, NOW + 9, NOW + 10, NOW + 29, NOW + 30):
        assert await site.committer.carry_out(decisions, jobs=jobs, now=now)
        asked.append(denied["bad"])
    assert asked == [1, 1, 2, 2, 3]
    assert site.written.keys() == {"victim"}
    backoff = site.scheduling.backoffs["bad"]
    assert backoff.until == NOW + 30 + 40
    assert not missing(backoff.cause, "its status could not be written", "a policy")


def fail_to_withdraw(bad: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where the eviction of one job is withdrawn."""
    withdrawn = transitions.disruption_withdrawn

    def failing(each: Job, **changes: Any) -> TrainingJobStatus:
        if each.uid == bad.uid:
            raise IndexError("planted")
        return withdrawn(each, **changes)

    monkeypatch.setattr(committer_module.disruption, "disruption_withdrawn", failing)


async def test_an_exception_on_one_job_is_handed_on_and_the_others_are_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = asked_to_leave(by=VICTIM)
    job = with_status(
        job, transitions.nominated_for_move(job.status, pool="h100", nodes=("node-x", "node-y"))
    )
    bad = replace(job, name="bad", uid="bad")
    fail_to_withdraw(bad, monkeypatch)
    decisions = Decisions(stay=(bad.uid, job.uid))
    jobs = {each.uid: each for each in (bad, job)}
    faults: list[tuple[str, str, str]] = []
    settled = await site.committer.carry_out(
        decisions,
        jobs=jobs,
        now=NOW,
        on_fault=lambda key, uid, error: faults.append((key, uid, str(error))),
    )
    assert settled
    assert faults == [(bad.key, bad.uid, "planted")]
    assert site.written.keys() == {"victim"}
    with pytest.raises(IndexError):
        await site.committer.carry_out(decisions, jobs=jobs, now=NOW)


async def test_an_exception_on_one_eviction_holds_up_no_other_withdrawal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = replace(PREEMPTOR, deleting=True)
    job = asked_to_leave(by=over)
    bad = replace(job, name="bad", uid="bad")
    fail_to_withdraw(bad, monkeypatch)
    faults: list[str] = []
    assert await site.committer.withdraw(
        [bad, job, over], now=NOW, on_fault=lambda key, *_: faults.append(key)
    )
    assert faults == [bad.key]
    assert site.written.keys() == {"victim"}


EVICTION = QueueEviction(
    key=VICTIM.key,
    uid=VICTIM.uid,
    queue="research",
    gpus=4,
    gpu_seconds_lost=0.0,
    why=QueueEvictionReason.QUEUE_DRAINED,
    message="queue research is drained",
)


async def test_who_departs_is_asked_to_save_goes_for_nobody_and_may_be_let_stay(
    site: Site,
) -> None:
    jobs = {VICTIM.uid: VICTIM}
    decisions = Decisions(evictions=(EVICTION,))
    assert await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    asked = site.written["victim"]["disruption"]
    assert (asked["kind"], asked["by"]) == (DisruptionKind.QUEUE_STOPPED, "queue research")
    assert asked["reason"] == "queue research is drained"
    job = with_status(VICTIM, TrainingJobStatus.model_validate(site.written.pop("victim")))
    assert await site.committer.withdraw([job], now=NOW)
    assert site.written == {}, "no job has to need its GPUs"
    stay = Decisions(stay=(job.uid,))
    assert await site.committer.carry_out(stay, jobs={job.uid: job}, now=NOW)
    assert "disruption" not in site.written["victim"]


async def test_nothing_is_written_when_it_was_let_stay_already(site: Site) -> None:
    decisions = Decisions(stay=(VICTIM.uid,))
    assert await site.committer.carry_out(decisions, jobs={VICTIM.uid: VICTIM}, now=NOW)
    assert site.written == {}


@pytest.mark.parametrize("template", [False, True])
async def test_a_member_whose_node_is_about_to_go_is_placed_elsewhere_in_a_single_write(
    site: Site, template: bool
) -> None:
    spec: dict[str, Any] = {"checkpoint": {"claimName": "shared"}}
    if template:
        spec = {"template": {"image": "any:1"}}
    job = running(admitted(a_job(name="driven", **spec)))
    status = transitions.disrupted(
        job,
        kind=DisruptionKind.MAINTENANCE,
        by="a taint",
        message="Maintenance of node node-b",
        deadline=NOW + 60,
        indices=[1],
        movable=True,
        now=NOW,
    )
    job = with_status(job, status)
    move = Placed(
        key=job.key, uid=job.uid, pool="h100", assignment=("node-a", "node-c"), replaced=(1,)
    )
    assert await site.committer.carry_out(Decisions(placed=(move,)), jobs={job.uid: job}, now=NOW)
    written = site.written["driven"]
    assert (written["assignment"]["nodes"], written["generation"]) == (["a", "c"], 2)
    assert not {"disruption", "budgets"} & written.keys()
    new = written["assignment"].get("replaced", [{"indices": [0, 1]}])
    assert new[0]["indices"] == ([0, 1] if template else [1])
    assert written["lastIncident"]["cause"] == "Maintenance of node node-b"
    assert (written["lastIncident"]["faultClass"], written["restarts"]) == ("Preemption", 0)


TEMPLATE = {"template": {"image": "any:1"}}


async def evict(site: Site, job: Job) -> dict[str, Any]:
    """What is written of a job whose nodes another one needs."""
    urgent = replace(a_job(name="urgent"), uid="uid-urgent")
    victim = Victim(
        key=job.key, uid=job.uid, gpus=4, gpu_seconds_lost=0.0, why=VictimReason.LOWER_PRIORITY
    )
    preemption = Preemption(
        key=urgent.key,
        uid=urgent.uid,
        pool="h100",
        assignment=("node-a", "node-b"),
        victims=(victim,),
    )
    jobs = {job.uid: job, urgent.uid: urgent}
    decisions = Decisions(preemptions=(preemption,))
    assert await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    assert site.written["urgent"]["nominated"]["nodes"] == ["a", "b"]
    return site.written[job.name]


async def test_the_gang_of_a_template_gives_its_nodes_up_in_the_write_that_evicts_it(
    site: Site,
) -> None:
    written = await evict(site, running(admitted(a_job(name="victim", **TEMPLATE))))
    assert not {"assignment", "disruption"} & written.keys()
    assert (written["phase"], written["reason"]) == ("Pending", "Preempted")
    assert written["message"].startswith("preempted by ")
    assert not missing(written["lastIncident"]["cause"], "4 GPUs", "LowerPriority")
    ((name, status),) = site.announced
    assert (name, status.phase) == ("victim", Phase.PENDING)


@pytest.mark.parametrize("spec", [{}, {"checkpoint": {"claimName": "shared"}}])
async def test_a_trainer_is_asked_before_it_gives_its_nodes_up(
    site: Site, spec: dict[str, Any]
) -> None:
    written = await evict(site, running(admitted(a_job(name="victim", **spec))))
    assert (written["phase"], written["disruption"]["byUid"]) == ("Running", "uid-urgent")
    assert written["assignment"]["nodes"] == ["a", "b"]


async def test_the_gang_of_a_template_that_has_just_ended_is_not_queued_again(site: Site) -> None:
    written = await evict(site, running(admitted(a_job(name="ended", **TEMPLATE))))
    assert (written["phase"], written["reason"]) == ("Running", "Preempted")
    assert written["assignment"]["nodes"] == ["a", "b"]


async def test_a_job_starts_with_its_surplus_in_a_single_write(site: Site) -> None:
    job = a_job(
        name="mixed",
        nodes=3,
        minNodes=2,
        spot="Surplus",
        trainer={"globalBatchSize": 12},
        checkpoint={"claimName": "shared"},
    )
    base = Placed(key=job.key, uid=job.uid, pool="h100", assignment=("node-a", "node-b"))
    surplus = Placed(key=job.key, uid=f"{job.uid}/surplus", pool="spot", assignment=("node-s",))
    decisions = Decisions(placed=(base, surplus))
    assert await site.committer.carry_out(decisions, jobs={job.uid: job}, now=NOW)
    written = site.written["mixed"]
    assert (written["generation"], written["ready"]) == (1, "0/3")
    assert written["assignment"]["gpuPool"] == "h100"
    assert written["assignment"]["nodes"] == ["a", "b", "s"]
    assert written["assignment"]["surplus"] == {"gpuPool": "spot", "indices": [2]}


WAITS = replace(a_job(name="waits", nodes=2), uid="uid-waits")
NO_QUOTA = StartRefusal(message="ResourceQuota few has no room", remedy="raise it")


def a_preemption(*victims: Victim) -> Decisions:
    preemption = Preemption(
        key=WAITS.key,
        uid=WAITS.uid,
        pool="h100",
        assignment=("a", "b"),
        victims=victims,
        message="needs 4 GPUs",
    )
    return Decisions(preemptions=(preemption,))


def a_victim(**more: Any) -> Victim:
    fields: dict[str, Any] = {
        "gpus": 4,
        "gpu_seconds_lost": 0.0,
        "why": VictimReason.LOWER_PRIORITY,
    }
    return Victim(key=VICTIM.key, uid=VICTIM.uid, **fields, **more)


async def test_nobody_is_evicted_for_a_job_whose_pods_would_be_refused(
    site: Site, refused: dict[str, StartRefusal | StartDoubt]
) -> None:
    jobs = {job.uid: job for job in (WAITS, VICTIM)}
    refused["waits"] = NO_QUOTA
    assert not await site.committer.carry_out(a_preemption(a_victim()), jobs=jobs, now=NOW)
    assert site.written.keys() == {"waits"}
    status = site.written["waits"]
    assert (status["reason"], status["failedStarts"]) == (Reason.API_REFUSED, 1)
    assert not missing(status["message"], "ResourceQuota few", "raise it")
    assert "nominated" not in status
    assert site.scheduling.backoffs[WAITS.uid].until == NOW + 10
    refused.clear()
    assert await site.committer.carry_out(a_preemption(a_victim()), jobs=jobs, now=NOW)
    assert "disruption" in site.written["victim"]


async def test_a_check_counts_the_jobs_of_its_namespace_that_start_before(
    site: Site, before: dict[str, list[str]]
) -> None:
    """No ResourceQuota counts their pods yet. A second job would evict others in vain."""

    def waiting(name: str, **status: Any) -> Job:
        job = replace(a_job(name=name, nodes=2), uid=f"uid-{name}")
        return with_status(job, job.status.model_copy(update=status))

    kept = PoolNodes.model_validate({"gpuPool": "h100", "nodes": ["a", "b"]})
    nominated, starts, again = waiting("kept", nominated=kept), waiting("starts"), waiting("again")
    other = replace(waiting("elsewhere", nominated=kept), namespace="other")
    jobs = {job.uid: job for job in (WAITS, VICTIM, nominated, starts, again, other)}
    first = a_preemption(a_victim()).preemptions[0]
    second = replace(first, key=again.key, uid=again.uid, victims=())
    decisions = Decisions(
        placed=(Placed(key=starts.key, uid=starts.uid, pool="h100", assignment=("c", "d")),),
        preemptions=(first, second),
    )
    assert await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    assert before == {
        "waits": ["starts 2", "kept 2"],
        "again": ["starts 2", "kept 2", f"waits {len(first.assignment)}"],
    }


async def test_a_start_that_passed_is_checked_again_in_another_pool(
    site: Site, refused: dict[str, StartRefusal | StartDoubt]
) -> None:
    """A pool's profile adds volumes, secrets and a RuntimeClass to the pods."""
    jobs = {job.uid: job for job in (WAITS, VICTIM)}
    decisions = a_preemption(a_victim())
    assert await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    refused["waits"] = NO_QUOTA
    assert await site.committer.carry_out(decisions, jobs=jobs, now=NOW + 1), "it is known"
    elsewhere = replace(decisions.preemptions[0], pool="a100")
    changed = Decisions(preemptions=(elsewhere,))
    assert not await site.committer.carry_out(changed, jobs=jobs, now=NOW + 2)


async def test_a_doubt_counts_as_no_failed_start_and_evicts_nobody(
    site: Site, refused: dict[str, StartRefusal | StartDoubt]
) -> None:
    refused["waits"] = StartDoubt(message="its start could not be checked", seconds=60)
    jobs = {job.uid: job for job in (WAITS, VICTIM)}
    assert not await site.committer.carry_out(a_preemption(a_victim()), jobs=jobs, now=NOW)
    assert site.written == {}
    assert site.announced == []
    checked = site.scheduling.checked[WAITS.uid]
    assert (checked.until, checked.message) == (NOW + 60, "its start could not be checked")


async def test_refused_checks_count_and_fail_the_job_with_the_remedy(
    site: Site, refused: dict[str, StartRefusal | StartDoubt]
) -> None:
    refused["waits"] = NO_QUOTA
    often = with_status(WAITS, WAITS.status.model_copy(update={"failed_starts": 4}))
    jobs = {job.uid: job for job in (often, VICTIM)}
    await site.committer.carry_out(a_preemption(a_victim()), jobs=jobs, now=NOW)
    status = site.written["waits"]
    assert (status["phase"], status["reason"]) == (Phase.FAILED, Reason.START_FAILED)
    assert not missing(status["message"], "ResourceQuota few", "raise it", "5 of 5")


@pytest.mark.parametrize("how", ["moves", "is moved"])
async def test_no_job_is_moved_that_could_not_start_again(
    site: Site, refused: dict[str, StartRefusal | StartDoubt], how: str
) -> None:
    refused["victim"] = NO_QUOTA
    jobs = {job.uid: job for job in (WAITS, VICTIM)}
    places = {"moves_to_pool": "h100", "moves_to": ("x", "y")}
    decisions = a_preemption(a_victim(**places))
    if how == "moves":
        fields: dict[str, Any] = {"why": MoveReason.DEFRAGMENTATION, "gpu_seconds_lost": 0.0}
        move = Move(key=VICTIM.key, uid=VICTIM.uid, pool="h100", assignment=("x", "y"), **fields)
        decisions = Decisions(moves=(move,))
    assert not await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    assert site.written == {}
    checked = site.scheduling.checked[VICTIM.uid]
    assert (checked.until > NOW, checked.message) == (True, NO_QUOTA.message)


async def test_a_repair_evicts_nobody_if_its_new_pods_would_be_refused(
    site: Site, refused: dict[str, StartRefusal | StartDoubt]
) -> None:
    refused["other"] = NO_QUOTA
    jobs = {job.uid: job for job in (PREEMPTOR, VICTIM)}
    preemption = replace(
        a_preemption(a_victim()).preemptions[0],
        key=PREEMPTOR.key,
        uid=PREEMPTOR.uid,
        replaced=(1,),
    )
    decisions = Decisions(preemptions=(preemption,))
    assert not await site.committer.carry_out(decisions, jobs=jobs, now=NOW)
    assert site.written == {}


@pytest.mark.parametrize(("kept", "members"), [((), 2), ((0,), 1)])
async def test_a_check_counts_what_victims_of_its_namespace_give_back(
    site: Site, going: dict[str, list[tuple[str, int]]], kept: tuple[int, ...], members: int
) -> None:
    jobs = {job.uid: job for job in (WAITS, VICTIM)}
    assert await site.committer.carry_out(a_preemption(a_victim(kept=kept)), jobs=jobs, now=NOW)
    assert going["waits"] == [("victim", members)]


@pytest.mark.parametrize("refuses", ["", "critic"])
async def test_a_group_is_checked_whole_before_anybody_leaves_for_it(
    site: Site,
    refused: dict[str, StartRefusal | StartDoubt],
    together: dict[str, list[str]],
    barriers: list[asyncio.Barrier],
    refuses: str,
) -> None:
    """All checks of a group run at once, because the cycle waits for them."""
    barriers.append(asyncio.Barrier(2))
    group = {"group": GroupSpec(name="rl", jobs=2)}
    actor, critic = (
        replace(each, uid=f"uid-{each.name}", spec=each.spec.model_copy(update=group))
        for each in (a_job(name="actor", nodes=2), a_job(name="critic", nodes=2))
    )
    if refuses:
        refused[refuses] = NO_QUOTA
    first = replace(a_preemption(a_victim()).preemptions[0], key=actor.key, uid=actor.uid)
    second = replace(first, key=critic.key, uid=critic.uid, assignment=("c", "d"), victims=())
    jobs = {job.uid: job for job in (actor, critic, VICTIM)}
    async with asyncio.timeout(HANG_SECONDS):
        done = await site.committer.carry_out(
            Decisions(preemptions=(first, second)), jobs=jobs, now=NOW
        )
    assert together == {"actor": ["critic"], "critic": []}
    if refuses:
        assert (done, site.written.keys()) == (False, {"critic"})
        assert site.written["critic"]["failedStarts"] == 1
    else:
        assert (done, site.written.keys()) == (True, {"actor", "critic", "victim"})
        assert site.written["critic"]["nominated"]["nodes"] == ["c", "d"]
