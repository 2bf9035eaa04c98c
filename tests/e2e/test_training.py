"""kubectl apply -> a trained model, on real kubelets, in restricted pods."""

from __future__ import annotations

import json
import secrets
from itertools import pairwise

import pytest

from tests.e2e.site import SLEEPER, Site, assert_restricted
from tests.kube import Json, phase_is, reason_is
from tools.cluster import ClusterError, kubectl
from tools.install import SYSTEM_NAMESPACE

CHECKPOINT = {"claimName": "checkpoints", "everySteps": 10}


@pytest.fixture(scope="module")
def first(stage: Site) -> Json:
    """The status of a job that has trained sixty steps on two nodes."""
    where = {**CHECKPOINT, "path": "first", "keep": 2}
    stage.submit("first", nodes=2, gpusPerNode=2, trainer={"steps": 60}, checkpoint=where)
    return stage.finish("first")


@pytest.mark.extended(keep=1, of="first training")
def test_ten_lines_train_the_model_and_leave_verified_checkpoints(stage: Site, first: Json) -> None:
    assert first["step"] == first["totalSteps"] == 60
    losses = stage.losses("first")
    assert sorted(losses) == list(range(1, 61))
    assert losses[1] > 5
    assert sum(losses[step] for step in range(56, 61)) / 5 < 3.5
    assert float(first["loss"]) == round(losses[60], 4)

    folder = stage.checkpoints / "first"
    kept = sorted(path.name for path in folder.glob("step-*"))
    assert kept == ["step-00000050", "step-00000060"]
    manifest = json.loads((folder / kept[-1] / "manifest.json").read_text())
    assert manifest["world_size"] == 4
    assert first["checkpoint"]["step"] == 60

    logs = stage.logs("first-0-g1")
    assert "[rank 0] step 60/60" in logs
    events = [json.loads(line) for line in logs.splitlines() if line.startswith("{")]
    assert {"agent_ready", "record_accepted", "ranks_started", "finished"} <= {
        event["event"] for event in events
    }
    assert_restricted(stage, "first")


@pytest.mark.extended
def test_a_checkpoint_is_taken_up_by_another_number_of_ranks(stage: Site, first: Json) -> None:
    where = {**CHECKPOINT, "path": "first"}
    stage.submit("narrow", nodes=1, gpusPerNode=2, trainer={"steps": 70}, checkpoint=where)
    status = stage.finish("narrow")
    assert (first["step"], status["step"]) == (60, 70)
    assert "step 60/" not in stage.logs("narrow-0-g1")
    losses = stage.losses("first")
    assert sorted(losses) == list(range(1, 71))
    assert all(abs(after - before) < 1.5 for before, after in pairwise(losses[s] for s in (60, 61)))


@pytest.mark.extended
def test_a_gang_keeps_to_one_rack_while_a_looser_fit_exists(site: Site) -> None:
    # node-2, alone in rack-1, has one GPU left: the tightest place for one of the two pods.
    site.submit("filler", template=SLEEPER, nodeSelector={"kubernetes.io/hostname": "node-2"})
    site.wait("filler", phase_is("Running"))
    site.submit("racked", nodes=2, template=SLEEPER, topology={"required": "rack"})
    site.wait("racked", phase_is("Running"))
    assert set(site.nodes("racked")) <= {"node-0", "node-1"}
    site.submit("loose", nodes=3, template=SLEEPER)
    site.wait("loose", phase_is("Running"))
    assert "node-2" in site.nodes("loose")


@pytest.mark.extended
def test_a_job_that_does_not_fit_waits_with_its_reason_and_then_runs(site: Site) -> None:
    spec: Json = {"nodes": 2, "gpusPerNode": 2, "trainer": {"steps": 20}}
    site.submit("early", **spec)
    site.wait("early", lambda job: (job or {}).get("status", {}).get("assignment") is not None)
    site.submit("late", **spec)
    late = site.wait("late", reason_is("QuotaExhausted"))["status"]
    assert f"{site.namespace}/early" in late["message"]
    assert "2 of 6" in late["message"]
    assert site.pods("late") == []
    site.finish("early")
    site.finish("late")


def test_own_template_finds_its_gang_by_name_and_by_the_launchers_variables(site: Site) -> None:
    script = """
import os, socket, sys
index, world = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
assert os.environ["PET_NNODES"] == os.environ["JAX_NUM_PROCESSES"] == "2"
assert os.environ["JAX_COORDINATOR_ADDRESS"].startswith(os.environ["MASTER_ADDR"] + ":")
slots = open(os.environ["OMPI_MCA_orte_default_hostfile"]).read().split()
assert slots == ["meeting-0", "slots=1", "meeting-1", "slots=1"], slots
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if index == 0:
    with socket.create_server(("", place[1])) as server:
        server.settimeout(900)
        peer, _ = server.accept()
        print("heard", peer.recv(100).decode())
else:
    for attempt in range(9000):
        try:
            peer = socket.create_connection(place, timeout=1)
            break
        except OSError:
            __import__("time").sleep(0.1)
    peer.sendall(socket.gethostname().encode())
"""
    template = {
        "image": "drumline/trainer:dev",
        "command": ["python3", "-c", script],
    }
    site.submit("meeting", nodes=2, template=template)
    site.finish("meeting")
    assert site.logs("meeting-0-g1").strip() == "heard meeting-1"


@pytest.mark.extended
def test_an_operator_killed_while_a_job_trains_changes_nothing_for_the_job(site: Site) -> None:
    site.submit("steady", nodes=2, trainer={"steps": 150})
    site.wait("steady", phase_is("Running"))
    before = {pod["metadata"]["uid"] for pod in site.pods("steady")}
    operators = site.kube.list("pods", SYSTEM_NAMESPACE)
    for operator in operators:
        site.kube.delete("pods", operator["metadata"]["name"], SYSTEM_NAMESPACE, grace=0)
    site.submit("next", nodes=1, gpusPerNode=2, trainer={"steps": 10})
    site.finish("next")
    status = site.finish("steady")
    assert status["generation"] == 1
    assert {pod["metadata"]["uid"] for pod in site.pods("steady")} == before


def test_a_bad_spec_is_refused_with_the_field_and_the_fix(site: Site) -> None:
    manifest = {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"bad-{secrets.token_hex(2)}", "namespace": site.namespace},
        "spec": {"queue": "research", "nodes": 2, "gpusPerNode": 2},
    }
    with pytest.raises(ClusterError, match=r"trainer.*template"):
        kubectl(site.cluster, "apply", "--filename=-", manifests=[manifest])
