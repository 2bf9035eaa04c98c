"""`drumline decide` and `drumline replay` as people use them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline import __version__
from drumline.lifecycle.model.timestamps import timestamp
from drumline_cli import program
from drumline_cli.decide import cluster
from drumline_cli.formatting import moment
from drumline_cli.manifests import read_manifests
from drumline_scheduler.capture import Capture, encode
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import Policy
from tests.texts import Golden, missing

API = "drumline.dev/v1alpha1"
Json = dict[str, Any]


def a_node(name: str, *, rack: str = "r1", **status: Any) -> Json:
    allocatable = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpu": "h100", "rack": rack}},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def a_pool(name: str = "h100") -> Json:
    levels = [{"name": "rack", "nodeLabel": "rack"}]
    spec = {"nodeSelector": {"gpu": "h100"}, "topologyLevels": levels}
    return {"apiVersion": API, "kind": "GpuPool", "metadata": {"name": name}, "spec": spec}


def a_queue(gpus: int = 16, *, name: str = "q", **rest: Any) -> Json:
    spec = {"quotas": [{"gpuPool": "h100", "nominalGpus": gpus}], **rest}
    return {"apiVersion": API, "kind": "TrainingQueue", "metadata": {"name": name}, "spec": spec}


def a_job(name: str, *, status: Json | None = None, **spec: Any) -> Json:
    fields = {"queue": "q", "gpusPerNode": 8, "template": {"image": "any:1"}, **spec}
    metadata = {"name": name, "namespace": "team"}
    job = {"apiVersion": API, "kind": "TrainingJob", "metadata": metadata, "spec": fields}
    return job if status is None else {**job, "status": status}


def a_class(name: str, value: int) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def placed_on(*nodes: str) -> Json:
    places = {"gpuPool": "h100", "nodes": list(nodes)}
    return {"generation": 1, "epoch": 1, "assignment": places, "phase": "Running"}


SITE = (a_node("n1"), a_node("n2"), a_pool(), a_queue())


def written(folder: Path, *objects: Json, name: str = "all.yaml") -> str:
    file = folder / name
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = program.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def verdicts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Json]:
    code, out, _ = run(capsys, "decide", *arguments, "-o", "json")
    assert code == 0
    return {line["job"]: line for line in json.loads(out)["verdicts"]}


def test_a_job_that_fits_is_placed_and_a_job_that_does_not_gets_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rack = {"required": "rack"}
    file = written(tmp_path, *SITE, a_job("first", nodes=2, topology=rack), a_job("big", nodes=3))
    decisions = verdicts(capsys, "-f", file)
    small, big = decisions["team/first"], decisions["team/big"]
    assert (small["verdict"], small["pool"], small["nodes"]) == ("Placed", "h100", ["n1", "n2"])
    assert (small["level"], small["domain"], small["gpus"]) == ("rack", ["r1"], 16)
    assert (big["verdict"], big["reason"]) == ("Waits", "ExceedsQuota")
    assert not missing(big["message"], "24 GPUs", "queue q", "16")


@pytest.mark.parametrize(
    "ending",
    [
        {"metadata": {"deletionTimestamp": "2026-11-29T10:00:00Z"}},
        {"status": {"phase": "Terminating"}},
    ],
)
def test_a_job_of_a_namespace_that_is_being_deleted_does_not_start_on_free_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: Json
) -> None:
    metadata = {"name": "team", **ending.get("metadata", {})}
    namespace = {**ending, "apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    waits = verdicts(capsys, "-f", written(tmp_path, *SITE, namespace, a_job("a")))["team/a"]
    assert (waits["verdict"], waits["reason"]) == ("Waits", "NamespaceTerminating")
    assert not missing(waits["message"], "namespace team", "being deleted")


@pytest.mark.parametrize(("hours", "reason"), [(98, ""), (99, "BudgetSpent")])
def test_what_a_budget_has_left_is_in_the_queue_and_its_running_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: int, reason: str
) -> None:
    """The queue's tally is of an hour ago; since half an hour a job holds two GPUs."""
    now = 19_996 * 86_400 + 43_200
    tally = {
        "spentGpuHours": hours,
        "until": timestamp(now - 3600),
        "days": [{"day": "2024-09-30", "gpuSeconds": hours * 3600}],
    }
    queue = {
        **a_queue(budget={"gpuHours": 100, "windowDays": 7}),
        "status": {"budget": tally},
    }
    account = {"until": timestamp(now - 1800), "starting": 0}
    runs = a_job("runs", gpusPerNode=2, status={**placed_on("n1"), "gpuSeconds": account})
    file = written(tmp_path, *SITE[:-1], queue, runs, a_job("waits"))
    os.utime(file, (now, now))
    waits = verdicts(capsys, "-f", file)["team/waits"]
    assert waits.get("reason", "") == reason


@pytest.mark.parametrize(("lost", "pool"), [(0, "spot"), (3 * 3600, "h100")])
def test_pools_are_compared_with_what_reclaims_have_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: int, pool: str
) -> None:
    now = 19_996 * 86_400 + 43_200
    spot, node = a_pool("spot"), a_node("s1")
    spot["spec"] |= {
        "nodeSelector": {"gpu": "spot"},
        "capacity": {"type": "Spot", "pricePerGpuHour": "0.9"},
    }
    day = {"day": "2024-09-30", "gpuSeconds": 3600, "reclaimedNodes": 1, "lostGpuSeconds": lost}
    history = {"gpuHours": 1, "reclaimedNodes": 1, "lostPercent": 0, "days": [day]}
    spot["status"] = {"interruptions": {**history, "until": timestamp(now)}}
    node["metadata"]["labels"]["gpu"] = "spot"
    demand = a_pool()
    demand["spec"]["capacity"] = {"pricePerGpuHour": "2.5"}
    quotas = [{"gpuPool": name, "nominalGpus": 8} for name in ("h100", "spot")]
    site = (a_node("n1"), node, demand, spot, a_queue(quotas=quotas), a_job("waits"))
    file = written(tmp_path, *site)
    os.utime(file, (now, now))
    assert verdicts(capsys, "-f", file)["team/waits"]["pool"] == pool


def test_labels_of_namespaces_open_queues_and_their_absence_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    selector = {"namespaceSelector": {"matchLabels": {"team": "nlp"}}}
    site = (a_node("n1"), a_pool(), a_queue(**selector), a_job("waits"))
    labelled = {"name": "team", "labels": {"team": "nlp"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled}
    opened = written(tmp_path, *site, namespace)
    assert verdicts(capsys, "-f", opened)["team/waits"]["verdict"] == "Placed"
    code, out, err = run(capsys, "decide", "-f", written(tmp_path, *site))
    assert code == 0
    assert not missing(out + err, "NamespaceNotAllowed", "queue q", "namespaceSelector")


@pytest.mark.parametrize("output", ["table", "wide"])
def test_the_table_has_a_line_a_job_and_wide_names_every_node(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    nodes = [a_node(f"n{number}") for number in range(8)]
    since = {"admittedAt": "2026-11-21T10:00:00Z"}
    held = a_job(
        "held", nodes=2, activeDeadlineSeconds=86_400, status={**placed_on("n0", "n1"), **since}
    )
    jobs = (a_job("first", nodes=6), a_job("next", nodes=5), a_job("big", nodes=9))
    file = written(tmp_path, *nodes, a_pool(), a_queue(64), held, *jobs)
    as_of = moment("2026-11-21T11:00:00Z")
    assert as_of is not None
    os.utime(file, (as_of, as_of))
    golden(f"{output}.txt", run(capsys, "decide", "-f", file, "-o", output)[1])


def test_lists_several_files_and_what_is_there_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [*SITE, a_job("first", nodes=3)]}
    (tmp_path / "all.json").write_text(json.dumps(listed))
    file = str(tmp_path / "all.json")
    assert verdicts(capsys, "-f", file)["team/first"]["reason"] == "ExceedsQuota"
    newer = written(tmp_path, a_job("first", nodes=1), {"kind": "Event"}, name="newer.yaml")
    assert verdicts(capsys, "-f", file, "-f", newer)["team/first"]["verdict"] == "Placed"


def test_victims_are_named_with_the_job_they_go_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    low = a_job("low", nodes=2, status=placed_on("n1", "n2"))
    high = a_job("high", nodes=1, priorityClassName="high")
    decisions = verdicts(capsys, "-f", written(tmp_path, *SITE, a_class("high", 5), low, high))
    assert (decisions["team/low"]["verdict"], decisions["team/low"]["by"]) == (
        "Preempted",
        "team/high",
    )
    assert decisions["team/low"]["reason"] == "LowerPriority"
    assert (decisions["team/high"]["reason"], decisions["team/high"]["nodes"]) == (
        "WaitingForVictims",
        ["n1"],
    )


@pytest.mark.parametrize(("quota", "urgent"), [(5, False), (6, False), (6, True)])
def test_ranks_and_roles_of_a_job_are_admitted_and_preempted_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quota: int, urgent: bool
) -> None:
    grpo = yaml.safe_load(Path("examples/grpo.yaml").read_text())
    grpo["spec"]["queue"] = "q"
    site = [a_node("n1"), a_pool(), a_queue(quota), a_class("high", 5)]
    if urgent:
        grpo["status"] = placed_on("n1", "n1", "n1")
        site.append(a_job("urgent", gpusPerNode=1, priorityClassName="high"))
    decided = verdicts(capsys, "-f", written(tmp_path, *site, grpo))["default/grpo"]
    wanted = {5: ("Waits", "ExceedsQuota"), 6: ("Placed", None)}[quota]
    assert (decided["verdict"], decided.get("reason")) == (
        ("Preempted", "LowerPriority") if urgent else wanted
    )
    assert decided["gpus"] == 6


def a_pod_that_ends(job: str, *, node: str) -> Json:
    """The pod of a job that was deleted a moment ago."""
    labels = {"job": job, "job-uid": job, "index": "0", "generation": "1", "queue": "q"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-0-g1",
            "namespace": "team",
            "labels": {f"drumline.dev/{key}": value for key, value in labels.items()},
            "ownerReferences": [{"uid": job, "controller": True}],
            "deletionTimestamp": "2026-11-21T06:55:30Z",
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "8"}}},
            ],
        },
        "status": {"phase": "Running"},
    }


def a_notebook(*, node: str) -> Json:
    """A foreign pod that names the queue."""
    pod = a_pod_that_ends("notebook", node=node)
    labels = {"drumline.dev/queue": "q"}
    metadata = {"name": "notebook", "namespace": "team", "uid": "notebook", "labels": labels}
    return {**pod, "metadata": metadata}


@pytest.mark.parametrize(
    ("pod", "holder"),
    [
        (a_pod_that_ends("gone", node="n1"), "team/gone"),
        (a_notebook(node="n1"), "team/pods/notebook"),
    ],
)
def test_pods_of_a_deleted_job_and_foreign_ones_are_charged_here_and_in_a_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pod: Json, holder: str
) -> None:
    small = (a_node("n1"), a_node("n2"), a_pool(), a_queue(8))
    file = written(tmp_path, *small, pod, a_job("next"))
    (waits,) = verdicts(capsys, "-f", file).values()
    assert (waits["verdict"], waits["reason"]) == ("Waits", "QuotaExhausted")
    assert not missing(waits["message"], f"{holder} (8)")
    world = cluster.read(read_manifests([file]))
    arguments: Json = {"snapshot": world.snapshot, "pending": world.pending, "policy": Policy()}
    decisions = decide(CycleInput(**arguments, now=world.as_of))
    capture = Capture(**arguments, now=world.as_of, decisions=decisions)
    (tmp_path / "capture.json").write_bytes(encode(capture))
    code, out, _ = run(capsys, "replay", str(tmp_path / "capture.json"))
    assert code == 0
    assert not missing(out, "0 placed")


def test_waiting_jobs_get_a_forecast_of_their_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = {"admittedAt": "2026-11-21T10:00:00Z"}
    held = a_job(
        "held", nodes=2, activeDeadlineSeconds=86_400, status={**placed_on("n1", "n2"), **since}
    )
    file = written(tmp_path, *SITE, held, a_job("next", nodes=2))
    as_of = moment("2026-11-21T11:00:00Z")
    assert as_of is not None
    os.utime(file, (as_of, as_of))
    decisions = verdicts(capsys, "-f", file)["team/next"]
    assert as_of < decisions["expectedStart"] <= as_of + 23 * 3600
    assert decisions["expectedStart"] <= decisions["expectedStartBy"]
    assert "expectedStart" not in verdicts(capsys, "-f", file, "--no-forecast")["team/next"]


def test_the_owner_s_choices_come_from_the_chart_s_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = a_job("busy", nodes=1, status=placed_on("n1"))
    waiting = [a_job("big", nodes=2, priorityClassName="high"), a_job("small", nodes=1)]
    gentle = a_queue(preemption={"withinQueue": "Never"})
    file = written(tmp_path, *SITE, gentle, a_class("high", 5), busy, *waiting)
    values = tmp_path / "values.yaml"
    values.write_text("replicas: 2\nscheduling: {waiting: Backfill}\n")
    assert verdicts(capsys, "-f", file)["team/small"]["verdict"] == "Placed"
    patient = verdicts(capsys, "-f", file, "--policy", str(values))
    assert patient["team/small"]["reason"] == "WouldDelayReservation"


def test_jobs_that_no_cycle_looks_at_are_listed_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    classless = a_job("classless", priorityClassName="gone")
    refused = a_job("refused", template=None, trainer={"overrides": {"optimiser": {}}})
    odd = a_job("odd", nodes=4, topology={"slices": [{"level": "rack", "nodes": 3}]})
    file = written(tmp_path, *SITE, classless, refused, odd)
    golden("set-aside.txt", run(capsys, "decide", "-f", file)[1].replace(str(tmp_path), "FOLDER"))


def test_of_a_pool_of_devices_it_says_that_only_the_operator_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = a_pool()
    pool["spec"]["devices"] = {"driver": "gpu.example.com", "deviceClassName": "gpu.example.com"}
    file = written(tmp_path, a_node("n1"), pool, a_queue(), a_job("first"))
    text = run(capsys, "decide", "-f", file)[1]
    assert not missing(text.splitlines()[-1], "pool h100", "gpu.example.com")
    assert not missing(text, "DRA devices")
    assert "add nodes" not in text


@pytest.mark.parametrize(
    ("objects", "field"),
    [
        ([a_job("bad", nodes="two")], "team/bad: spec.nodes:"),
        ([a_queue(-1, name="bad")], ": bad: spec.quotas[0].nominalGpus:"),
        ([{**a_pool("bad"), "spec": {}}], ": bad: spec.nodeSelector:"),
        ([a_node("n", allocatable={"cpu": [4]})], "status.allocatable[...]:"),
        ([a_node("n", allocatable={"cpu": "four"})], "'four'"),
        ([{"apiVersion": API, "kind": "TrainingJob"}], "metadata"),
    ],
)
def test_a_malformed_object_is_named_by_file_line_and_field(
    objects: list[Json], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = [*SITE, a_job("fine"), *objects]
    code, out, err = run(capsys, "decide", "-f", written(tmp_path, *objects), "-o", "json")
    answer = json.loads(out)
    assert (code, err) == (1, "")
    (problem,) = answer["unreadable"]
    assert problem.startswith(f"{tmp_path / 'all.yaml'}, line ")
    assert field in problem
    assert {"team/fine": "Placed"}.items() <= {
        verdict["job"]: verdict["verdict"] for verdict in answer["verdicts"]
    }.items()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"apiVersion": "batch/v1"}, "TrainingJob is a kind of drumline.dev/v1alpha1"),
        ({"apiVersion": None}, "TrainingJob is a kind of drumline.dev/v1alpha1"),
        ({"kind": None}, "the object has no kind"),
        ({"metadata": {"generateName": "a-"}}, "decide needs metadata.name"),
    ],
)
def test_an_object_that_would_be_left_out_is_refused(
    changes: Json, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {**a_job("a"), **changes})
    code, shown, _ = run(capsys, "decide", "-f", file)
    assert (code, says in shown) == (1, True), shown


def test_a_policy_that_is_none_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "values.yaml").write_text("scheduling:\n  order: Priority\n  waiting: Maybe\n")
    arguments = ("-f", written(tmp_path, *SITE), "--policy", str(tmp_path / "values.yaml"))
    code, _, err = run(capsys, "decide", *arguments)
    assert code == 2
    assert not missing(err, "values.yaml, line 3: scheduling.waiting", "'BestEffort'")


def captured(folder: Path) -> Path:
    """A cycle with a job that starts and a job that waits."""
    file = written(folder, *SITE, a_job("first", nodes=2), a_job("two", nodes=1))
    site = cluster.read(read_manifests([file]))
    policy = Policy()
    made = decide(CycleInput(snapshot=site.snapshot, pending=site.pending, policy=policy, now=5.0))
    capture = Capture(
        snapshot=site.snapshot,
        pending=site.pending,
        policy=policy,
        now=5.0,
        decisions=made,
    )
    (folder / "capture.json").write_bytes(encode(capture))
    return folder / "capture.json"


def test_a_capture_is_decided_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "replay", str(captured(tmp_path)))
    assert (code, out.count("\n")) == (0, 1)
    assert not missing(out, "1 placed", "0 resized", "0 preemptions", "0 moves", "1 waiting")
    table = run(capsys, "replay", str(captured(tmp_path)), "-o", "table")[1]
    assert [line.split()[0] for line in table.splitlines()[:3]] == ["JOB", "team/first", "team/two"]


def test_what_would_be_decided_otherwise_now_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = captured(tmp_path)
    text = file.read_text()
    assert '"n2"' in text
    bent = text.replace('"unschedulable": false', '"unschedulable": true')
    file.write_text(bent)
    code, out, _ = run(capsys, "replay", str(file))
    assert code == 1
    lines = {line.strip().partition(": ")[0] for line in out.splitlines()[1:]}
    assert lines >= {"placed[team/first]", "blocked[team/first]", "blocked[team/two].reason"}


def test_an_upgrade_that_changes_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = captured(tmp_path)
    file.write_text(file.read_text().replace("needs", "wants"))  # other words are no difference
    assert run(capsys, "replay", str(file))[0] == 1
    code, out, _ = run(capsys, "upgrade", "--check", str(file))
    total, capture = out.splitlines()
    assert code == 0
    assert not missing(total, __version__, "1 captured cycle")
    assert not missing(capture, str(file), "1970-01-01 00:00:05Z", "2 waiting jobs")


def test_an_upgrade_names_the_jobs_that_fare_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = captured(tmp_path)
    file.write_text(file.read_text().replace('"unschedulable": false', '"unschedulable": true'))
    code, out, _ = run(capsys, "upgrade", "--check", str(tmp_path))
    assert code == 1
    _, capture, first, _ = out.splitlines()
    assert not missing(capture, "2 waiting jobs: 2")
    assert not missing(first, "team/first", "n1, n2", "NodesUnavailable")


def test_an_upgrade_without_captures_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "upgrade", "--check", str(tmp_path))
    assert code == 2
    assert not missing(err, "captures", "*.json")


def test_what_is_no_capture_is_named_by_line_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = captured(tmp_path)
    lines = file.read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.strip() == '"now": 5.0,']
    lines[at] = lines[at].replace("5.0", '"soon"')
    file.write_text("\n".join(lines))
    code, _, err = run(capsys, "replay", str(file))
    assert code == 2
    assert err == (f"drumline: {file}, line {at + 1}: capture.now: Expected `float`, got `str`\n")
    lines[at] = lines[at].replace(":", "!")
    file.write_text("\n".join(lines))
    assert f"line {at + 1}: JSON is malformed" in run(capsys, "replay", str(file))[2]


def test_a_manifest_of_an_argument_is_judged_beside_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, *SITE, a_job("first", nodes=1))
    again = json.dumps(a_job("first", nodes=2))  # stands for the one of the file
    (answer,) = verdicts(capsys, "-f", file, "--manifest", again).values()
    assert (answer["job"], answer["pods"]) == ("team/first", 2)
    for text, problem in (("nodes: 2", "no JSON"), ("[]", "must be a mapping")):
        code, _, err = run(capsys, "decide", "-f", file, "--manifest", text)
        assert code == 2
        assert problem in err


def test_files_alone_read_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, *SITE)
    code, _, err = run(capsys, "decide", "-f", file, "--context", "mine")
    assert code == 2
    assert "add --live" in err


def a_growing_pool(**status: Any) -> Json:
    node = {"allocatable": {"nvidia.com/gpu": 8, "cpu": 96, "memory": "1Ti"}}
    scaling = {"mode": "Placeholders", "maxNodes": 9, "node": node}
    pool = a_pool()
    return {**pool, "spec": {**pool["spec"], "autoscaling": scaling}, "status": status}


def test_who_waits_for_nodes_is_told_how_many_of_what_and_when_they_probably_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = a_growing_pool(autoscaling={"startSeconds": [100, 120, 300]})
    job = a_job("big", nodes=3, gpuPool="h100")
    file = written(tmp_path, pool, a_queue(gpus=64), a_node("n1"), job)
    os.utime(file, (5_000.0, 5_000.0))
    _, out, _ = run(capsys, "decide", "-f", file, "-o", "json")
    (verdict,) = json.loads(out)["verdicts"]
    assert (verdict["verdict"], verdict["reason"]) == ("Waits", "WaitingForNodes")
    assert {**verdict["needsNodes"], "takes": ...} == {"pool": "h100", "nodes": 2, "takes": ...}
    (takes,) = verdict["needsNodes"]["takes"]
    assert (takes["nodes"], takes["gpus"]) == (3, 8)
    assert (verdict["expectedStart"], verdict["expectedStartBy"]) == (5_120.0, 5_300.0)


def test_what_did_not_come_lately_is_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pause = {"zone": "", "poolNodes": 3, "until": "2100-01-01T00:00:00Z", "timeouts": 1}
    pool = a_growing_pool(autoscaling={"pauses": [pause]})
    job = a_job("big", nodes=3, gpuPool="h100")
    file = written(tmp_path, pool, a_queue(gpus=64), job)
    _, out, _ = run(capsys, "decide", "-f", file, "-o", "json")
    (verdict,) = json.loads(out)["verdicts"]
    assert verdict["reason"] != "WaitingForNodes"
