"""Templates whose command an agent starts: their pods, and lives like the bundled trainer's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of
from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings, new_agent_image
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import NodeDisruption, Observed
from drumline.lifecycle.plan.actions import JobPlan, PushRecord
from drumline.lifecycle.plan.node_disruption import evacuated
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import DisruptionKind, Phase, Reason
from drumline_contract import (
    ExitCode,
    FaultClass,
    FinalReport,
    Incident,
    Launch,
    LaunchSettings,
    NoticeSignal,
    Progress,
)
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    pod_manifest,
    ready_pods,
    running,
    with_status,
)
from tests.unit.lifecycle.planning import decided

SETTINGS = PodSettings(trainer_image="drumline/trainer:1", join_image="drumline/operator:1")
NODES = ("node-a", "node-b", "node-c")
Json = dict[str, Any]


def a_supervised_job(*, nodes: int = 3, launch: str = "PerGpu", **template: Any) -> Job:
    mine = {"image": "mine:1", "command": ["python3", "train.py"], "launch": launch, **template}
    return a_job(nodes=nodes, template=mine)


def a_gang(**template: Any) -> Job:
    return running(admitted(a_supervised_job(**template), nodes=NODES))


def manifest(job: Job) -> Json:
    return pod_manifest(job, index=0, gpus=PoolGpus(resource="nvidia.com/gpu"), settings=SETTINGS)


def variables_of(container: Json) -> Json:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def standing_with(job: Job, index: int, **facts: Any) -> Observed:
    surviving = [pod for pod in ready_pods(job) if pod.index != index]
    return observed(*surviving, a_pod(job, index, **facts), acknowledged_generation=1)


# --- the pod -----------------------------------------------------------------------------------


def test_the_agent_is_the_container_s_program_and_the_command_its_arguments() -> None:
    job = a_supervised_job(args=["--lr", "$(LR)"], workingDir="/work", runAsUser=1000)
    made = manifest(admitted(job, nodes=NODES))
    (container,) = made["spec"]["containers"]
    assert container["image"] == "mine:1"
    assert container["workingDir"] == "/work"
    assert container["command"] == [
        *("/opt/drumline/bin/python3", "-I", "-m", "drumline_agent", "command", "--")
    ]
    assert container["args"] == ["python3", "train.py", "--lr", "$(LR)"]
    assert container["ports"] == [{"name": "agent", "containerPort": 29400}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 29400}
    assert "livenessProbe" not in container
    assert made["metadata"]["labels"]["drumline.dev/gang-network"] == "true"
    keys = [toleration["key"] for toleration in made["spec"]["tolerations"]]
    assert "node.kubernetes.io/unreachable" in keys


def test_the_job_s_code_is_unpacked_by_the_init_container_and_the_command_starts_in_it() -> None:
    digest = f"sha256:{'a' * 64}"
    job = a_supervised_job(code={"digest": digest, "configMaps": ["code-0", "code-1"]})
    spec = manifest(admitted(job, nodes=NODES))["spec"]
    (install,), (container,) = spec["initContainers"], spec["containers"]
    assert container["workingDir"] == "/code"
    folder = {"name": "drumline-code", "mountPath": "/code"}
    assert folder in container["volumeMounts"]
    parts = {"name": "drumline-code-parts", "mountPath": "/var/run/drumline/code", "readOnly": True}
    assert [mount for mount in install["volumeMounts"] if "code" in mount["name"]] == [
        folder,
        parts,
    ]
    for each in (install, container):
        assert variables_of(each)["DRUMLINE_CODE_DIGEST"] == digest
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["drumline-code"] == {"name": "drumline-code", "emptyDir": {}}
    assert volumes["drumline-code-parts"]["projected"]["sources"] == [
        {"configMap": {"name": "code-0", "items": [{"key": "part", "path": "0"}]}},
        {"configMap": {"name": "code-1", "items": [{"key": "part", "path": "1"}]}},
    ]
    elsewhere = a_supervised_job(
        code={"digest": digest, "configMaps": ["code-0"]}, workingDir="/code/src"
    )
    (container,) = manifest(admitted(elsewhere, nodes=NODES))["spec"]["containers"]
    assert container["workingDir"] == "/code/src"


def test_the_agent_comes_with_its_own_python_and_writes_the_gang_s_files_itself() -> None:
    spec = manifest(admitted(a_supervised_job(), nodes=NODES))["spec"]
    (install,), (container,) = spec["initContainers"], spec["containers"]
    assert (install["name"], install["image"]) == ("drumline-agent", "drumline/operator:1")
    assert install["command"] == ["python3", "-m", "drumline_agent", "install"]
    assert [each["name"] for each in install["env"]] == ["DRUMLINE_POD_IP"]
    assert install["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert install["resources"]["requests"] == install["resources"]["limits"]
    bundle = {"name": "drumline-bundle", "mountPath": "/opt/drumline"}
    target = {"name": "drumline-bundle", "mountPath": "/opt/drumline-bundle"}
    gang = {"name": "drumline-gang", "mountPath": "/var/run/drumline/gang"}
    hosts = {"name": "drumline-gang", "mountPath": "/etc/hosts", "subPath": "hosts"}
    assert install["volumeMounts"] == [target, gang]  # and no token: it only copies
    for mount in (
        {**bundle, "readOnly": True},
        gang,
        {**hosts, "readOnly": True},
        {"name": "drumline-token", "mountPath": "/var/run/drumline/token", "readOnly": True},
    ):
        assert mount in container["volumeMounts"]
    mounted = {mount["name"] for mount in (*install["volumeMounts"], *container["volumeMounts"])}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_the_agent_s_image_may_be_another_than_the_operator_s() -> None:
    job, settings = admitted(a_supervised_job(), nodes=NODES), replace(SETTINGS, agent_image="a:1")
    gpus = PoolGpus(resource="nvidia.com/gpu")
    (install,) = pod_manifest(job, index=0, gpus=gpus, settings=settings)["spec"]["initContainers"]
    assert install["image"] == "a:1"


def test_a_replaced_pod_has_the_agent_of_its_peers_over_an_upgrade() -> None:
    """Admitted by an operator whose agent is a:1; the next operator brings a:2."""
    gpus, before = PoolGpus(resource="nvidia.com/gpu"), replace(SETTINGS, agent_image="a:1")
    waiting, after = a_supervised_job(), replace(SETTINGS, agent_image="a:2")
    job = admitted(waiting, nodes=NODES, agent_image=new_agent_image(waiting, before))
    (install,) = pod_manifest(job, index=0, gpus=gpus, settings=after)["spec"]["initContainers"]
    assert install["image"] == "a:1"
    again = admitted(job, nodes=NODES, agent_image=new_agent_image(job, after))
    assert again.status.agent_image == "a:2"
    assert new_agent_image(a_job(), after) is None


def test_both_containers_are_restricted() -> None:
    spec = manifest(admitted(a_supervised_job(), nodes=NODES))["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False


def test_the_agent_is_told_where_progress_is_written() -> None:
    files = {"folder": "/logs", "lossTag": "objective"}
    progress = {"patterns": ["(?P<step>a)"], "tensorBoard": files}
    job = admitted(a_supervised_job(progress=progress), nodes=NODES)
    (container,) = manifest(job)["spec"]["containers"]
    assert LaunchSettings.parse(variables_of(container)["DRUMLINE_LAUNCH"]) == LaunchSettings(
        launch=Launch.PER_GPU,
        progress_patterns=("(?P<step>a)",),
        events_folder="/logs",
        loss_tag="objective",
    )


def test_the_agent_is_told_what_to_preload() -> None:
    job = admitted(a_supervised_job(preload=["torch", "transformers"]), nodes=NODES)
    (container,) = manifest(job)["spec"]["containers"]
    settings = LaunchSettings.parse(variables_of(container)["DRUMLINE_LAUNCH"])
    assert settings.preload == ("torch", "transformers")


@pytest.mark.parametrize("launch", Launch)
def test_the_agent_is_told_of_the_template_and_sets_the_launcher_s_variables_itself(
    launch: Launch,
) -> None:
    job = a_supervised_job(
        launch=launch,
        terminationGracePeriodSeconds=90,
        env=[{"name": "LR", "value": "0.1"}],
    )
    (container,) = manifest(admitted(job, nodes=NODES))["spec"]["containers"]
    variables = variables_of(container)
    assert LaunchSettings.parse(variables["DRUMLINE_LAUNCH"]) == LaunchSettings(launch=launch)
    assert variables["DRUMLINE_GRACE_SECONDS"] == "90"
    assert variables["DRUMLINE_GPUS_PER_NODE"] == "2"
    assert (variables["LR"], variables["HOME"]) == ("0.1", "/home/drumline")
    assert not variables.keys() & {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "NNODES"}


def test_the_agent_is_told_how_the_command_hears_of_its_end() -> None:
    job = a_supervised_job(notice={"signal": "SIGUSR2", "file": "/data/end.json"})
    (container,) = manifest(admitted(job, nodes=NODES))["spec"]["containers"]
    settings = LaunchSettings.parse(variables_of(container)["DRUMLINE_LAUNCH"])
    assert settings.notice_signal is NoticeSignal.SIGUSR2
    assert settings.notice_file == "/data/end.json"


def test_the_agent_gets_the_patterns_of_the_template_as_they_are() -> None:
    patterns = [r"at  (?P<step>\d+)", "loss=(?P<loss>.+)"]
    job = a_supervised_job(progress={"patterns": patterns})
    (container,) = manifest(admitted(job, nodes=NODES))["spec"]["containers"]
    settings = LaunchSettings.parse(variables_of(container)["DRUMLINE_LAUNCH"])
    assert settings.progress_patterns == tuple(patterns)


@pytest.mark.parametrize(("detection", "watches"), [("Activity", True), ("Steps", False)])
def test_the_agent_watches_activity_where_the_template_says_so(
    detection: str, watches: bool
) -> None:
    job = a_supervised_job(hangDetection=detection)
    (container,) = manifest(admitted(job, nodes=NODES))["spec"]["containers"]
    settings = LaunchSettings.parse(variables_of(container)["DRUMLINE_LAUNCH"])
    assert settings.watches_activity is watches


def test_a_template_on_one_node_has_its_agent_too() -> None:
    job = admitted(a_supervised_job(nodes=1), nodes=("node-a",))
    assert job.has_agents
    assert manifest(job)["spec"]["initContainers"]


def test_an_absent_launch_is_direct() -> None:
    absent = a_job(template={"image": "mine:1", "command": ["train"]})
    direct = a_job(template={"image": "mine:1", "command": ["train"], "launch": "Direct"})
    assert manifest(admitted(absent)) == manifest(admitted(direct))
    assert not absent.is_supervised


def test_the_scheduler_counts_what_the_init_container_requests() -> None:
    gang = gang_of(a_supervised_job(), priority=0)
    assert gang.per_pod.cpu_millis == 500


@pytest.mark.parametrize(("launch", "ranks"), [("PerGpu", 2), ("PerPod", 1)])
def test_the_record_says_how_many_processes_a_pod_has(launch: str, ranks: int) -> None:
    job = admitted(a_supervised_job(launch=launch), nodes=NODES)
    (push,) = plan_job(job, observed(*ready_pods(job)), now=T0 + 1, epoch=EPOCH).actions
    assert isinstance(push, PushRecord)
    assert [member.ranks for member in push.record.members] == [ranks] * 3


# --- its life ----------------------------------------------------------------------------------


def test_a_gang_runs_once_its_record_is_acknowledged() -> None:
    job = admitted(a_supervised_job(), nodes=NODES)
    seen = observed(*ready_pods(job), evictable=0)
    assert plan_job(job, seen, now=T0 + 1, epoch=EPOCH).status is None
    status = decided(job, replace(seen, acknowledged_generation=1))
    assert status.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"terminating": True}, Reason.POD_LOST),
        ({"terminating": True, "evicted": True}, Reason.NODE_DISRUPTED),
        ({"end": ended(exit_code=None, reason="Evicted")}, Reason.POD_LOST),
        ({"end": ended(exit_code=ExitCode.PREEMPTED)}, Reason.POD_LOST),
    ],
)
def test_a_lost_member_alone_is_given_up(facts: dict[str, Any], reason: Reason) -> None:
    job = a_gang()
    status = decided(job, standing_with(job, 1, **facts))
    assert status.assignment is not None
    assert (status.assignment.lost, status.reason) == ([1], reason)
    assert (status.phase, status.generation) == (Phase.RECOVERING, 1)


def test_a_silent_member_alone_is_given_up() -> None:
    job = a_gang()
    pods = ready_pods(job)
    status = decided(job, observed(*pods, silent=frozenset({pods[2].uid})))
    assert status.assignment is not None
    assert (status.assignment.lost, status.reason) == ([2], Reason.MEMBER_SILENT)


def test_a_member_whose_pod_failed_alone_gets_a_new_pod() -> None:
    job = a_gang()
    status = decided(job, standing_with(job, 1, end=ended(exit_code=139)))
    assert [member.pod_generation for member in members_of(status)] == [1, 2, 1]


def test_a_new_pod_elsewhere_waits_for_the_grace_of_the_old_one_which_may_be_saving() -> None:
    job = a_gang()
    leaving = a_pod(job, 1, ip="10.0.0.2", terminating=True, terminates_by=T0 + 20)
    job = with_status(job, decided(job, standing_with(job, 1, terminating=True)))
    nodes = ("node-a", "node-d", "node-c")
    job = with_status(
        job,
        transitions.members_replaced(job, nodes=nodes, replaced={1}, epoch=EPOCH, now=T0 + 2),
    )
    survivors = [pod for pod in ready_pods(job) if pod.index != 1]
    plan = plan_job(job, observed(*survivors, leaving), now=T0 + 3, epoch=EPOCH)
    assert plan == JobPlan(requeue_at=T0 + 20)


def test_members_of_a_node_that_goes_move_alone() -> None:
    job = a_gang()
    certain = NodeDisruption(
        node="node-b",
        kind=DisruptionKind.SPOT_RECLAIM,
        source="test",
        deadline=T0 + 120,
        certain=True,
    )
    job = with_status(
        job, decided(job, observed(*ready_pods(job), node_disruptions=(certain,), evictable=0))
    )
    nodes = ("node-a", "node-d", "node-c")
    status = evacuated(job, nodes=nodes, positions=(1,), epoch=EPOCH, now=T0 + 20)
    assert [member.pod_generation for member in members_of(status)] == [1, 2, 1]
    assert (status.restarts, status.budgets) == (0, None)


def test_the_job_is_done_once_an_agent_has_seen_all_ranks_exit_with_0() -> None:
    job = a_gang()
    done = a_pod(job, 0, end=ended(exit_code=0))
    lost = a_pod(job, 1, terminating=True)
    status = decided(job, observed(done, lost, ready_pods(job)[2]))
    assert status.phase is Phase.SUCCEEDED


# --- steps that nobody says --------------------------------------------------------------------


def in_place(job: Job, *, attempt: int, step: int = 0) -> Job:
    incident = Incident(
        generation=1,
        attempt=attempt,
        fault_class=FaultClass.APPLICATION,
        cause="rank 1: ValueError: boom",
        culprit_index=0,
        fault_at=T0 + attempt,
        detected_at=T0 + attempt,
        restored_at=T0 + attempt,
        first_step_at=T0 + attempt,
        failed_step=step,
        restored_step=step,
    )
    seen = observed(*ready_pods(job), incidents=(incident,), evictable=0)
    return with_status(job, decided(job, seen, now=T0 + attempt + 1))


def test_restarts_in_place_are_charged_and_are_no_row_where_no_step_is_known() -> None:
    job = a_gang()
    for attempt in range(1, 5):
        job = in_place(job, attempt=attempt)
    last = job.status.last_incident
    assert last is not None
    assert (last.failed_step, last.repeats, last.attempt) == (None, 1, 4)
    assert [budget.used for budget in job.status.budgets or ()] == [4]


def test_known_steps_are_a_row() -> None:
    job = a_gang()
    for attempt in range(1, 4):
        job = in_place(job, attempt=attempt, step=7)
    last = job.status.last_incident
    assert last is not None
    assert (last.failed_step, last.repeats) == (7, 3)


def test_pods_that_fail_without_a_step_are_no_row_either() -> None:
    job = replace(a_gang(), spec=a_gang().spec.model_copy(update={"recovery": MANY}))
    words = FinalReport(progress=Progress(step=0, total_steps=0), error="boom").encode().decode()
    for _ in range(5):
        seen = standing_with(job, 1, end=ended(exit_code=1, message=words))
        job = running(with_status(job, decided(job, seen)))
    assert job.status.restarts == 5


MANY = a_job(recovery={"maxRestarts": 100}).spec.recovery


def test_figures_that_nobody_gave_are_absent() -> None:
    job = a_gang()
    seen = observed(*ready_pods(job), progress=Progress(step=0, total_steps=0), evictable=0)
    plan = plan_job(job, seen, now=T0 + 60, epoch=EPOCH)
    status = plan.status or job.status
    assert (status.step, status.total_steps) == (None, None)


def test_a_recovery_by_new_pods_alone_is_over_when_they_run() -> None:
    """No step will show it, and no agent of the new pods knows of it."""
    job = running(admitted(a_supervised_job(nodes=1), nodes=("node-a",)))
    job = with_status(job, decided(job, observed(a_pod(job, 0, end=ended(exit_code=1)))))
    assert job.status.last_incident is not None
    assert job.status.last_incident.first_step_milliseconds is None
    status = transitions.running(job, now=T0 + 9)
    assert status.last_incident is not None
    assert status.last_incident.first_step_milliseconds is not None
