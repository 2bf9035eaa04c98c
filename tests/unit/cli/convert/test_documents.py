"""Jobs of other systems as TrainingJobs: the examples of docs/migrating.md, and nothing lost."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from drumline_api.load import parse
from drumline_api.role import RoleSpec
from drumline_api.spec_rules import broken_rules
from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.convert.command import convert_document
from drumline_cli.convert.model import Conversion, ConversionError, Fate, Wanted
from drumline_cli.convert.roles import role_name
from drumline_cli.convert.sbatch import convert_sbatch

PAGE = (Path(__file__).parents[4] / "docs" / "migrating.md").read_text()
EXAMPLES = re.findall(r"```(yml|bash)\n(.*?)```\s+```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
DOCUMENTS = [yaml.safe_load(text) for language, text, _ in EXAMPLES if language == "yml"]
MPI_JOB = next(each for each in DOCUMENTS if each["kind"] == "MPIJob")
TRAIN_JOB: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "sft"},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {
            "numNodes": 2,
            "image": "registry.example.com/sft:1",
            "command": ["torchrun", "train.py"],
            "env": [{"name": "LR", "value": "0.1"}],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}},
        },
    },
}


def convert(raw: dict[str, Any], **wanted: str) -> Conversion:
    group = raw["apiVersion"].partition("/")[0]
    conversion = convert_document(
        raw, group=group, kind=raw["kind"], wanted=Wanted(queue="q", **wanted)
    )
    assert conversion is not None
    return conversion


def left_out(conversion: Conversion) -> dict[str, str]:
    return {note.path: note.text for note in conversion.notes if note.fate is Fate.LEFT_OUT}


def objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield path, fields
        for name, below in fields.items():
            yield from objects(below, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, below in enumerate(cast("list[Any]", value)):
            yield from objects(below, f"{path}[{number}]")


def container(document: dict[str, Any]) -> dict[str, Any]:
    worker = document["spec"]["pytorchReplicaSpecs"]["Worker"]
    return worker["template"]["spec"]["containers"][0]


def pytorchjob() -> dict[str, Any]:
    """Only workers: what is changed of one role is no difference to another."""
    document = copy.deepcopy(DOCUMENTS[0])
    del document["spec"]["pytorchReplicaSpecs"]["Master"]
    return document


@pytest.mark.parametrize(("language", "text", "printed"), EXAMPLES)
def test_an_example_of_the_page_becomes_the_job_beside_it(
    language: str, text: str, printed: str
) -> None:
    if language == "bash":
        conversion = convert_sbatch(text, Wanted())
    else:
        raw = yaml.safe_load(text)
        conversion = convert_document(
            raw, group=raw["apiVersion"].partition("/")[0], kind=raw["kind"], wanted=Wanted()
        )
    assert conversion is not None
    assert conversion.job == yaml.safe_load(printed)
    assert broken_rules(parse(TrainingJobSpec, conversion.job["spec"])) == ()


def test_the_page_has_an_example_of_each_system() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("document", [*DOCUMENTS, TRAIN_JOB], ids=lambda raw: raw["kind"])
def test_a_field_that_nobody_knows_is_named_wherever_it_stands(document: dict[str, Any]) -> None:
    before = convert(copy.deepcopy(document)).job
    for path, _ in objects(document):
        changed = copy.deepcopy(document)
        place = dict(objects(changed))[path]
        place["strange"] = "x"
        try:
            conversion = convert(changed)
        except ConversionError:
            continue  # refused aloud
        at = f"{path}.strange" if path else "strange"
        named = any(at.startswith(note.path) for note in conversion.notes if note.path)
        assert named or conversion.job != before, at


def test_variables_and_mounts_of_the_operator_are_left_out() -> None:
    document = pytorchjob()
    container(document)["env"] = [
        {"name": "LD_PRELOAD", "value": "x"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LR", "value": "1"},
    ]
    container(document)["volumeMounts"].append({"name": "data", "mountPath": "/etc/hosts"})
    conversion = convert(document)
    template = conversion.job["spec"]["template"]
    assert template["env"] == [{"name": "LR", "value": "1"}]
    assert [mount["mountPath"] for mount in template["volumeMounts"]] == ["/data"]
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    assert {
        f"{at}.env[0]",
        f"{at}.env[1].valueFrom.fieldRef",
        f"{at}.volumeMounts[1]",
        f"{at}.volumeMounts[2]",
    } <= set(left_out(conversion))


def test_claims_that_are_made_for_each_pod_stay() -> None:
    document = pytorchjob()
    pod = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "2Ti"}},
    }
    claim = {"metadata": {"labels": {"a": "b"}}, "spec": {**spec, "volumeMode": "Filesystem"}}
    pod["volumes"][0] = {"name": "data", "ephemeral": {"volumeClaimTemplate": claim}}
    conversion = convert(document)
    (volume, *_) = conversion.job["spec"]["template"]["volumes"]
    assert volume == {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    template = "spec.pytorchReplicaSpecs.Worker.template.spec.volumes[0].ephemeral"
    assert {
        f"{template}.volumeClaimTemplate.metadata",
        f"{template}.volumeClaimTemplate.spec.volumeMode",
    } <= set(left_out(conversion))
    assert broken_rules(parse(TrainingJobSpec, conversion.job["spec"])) == ()


def test_a_folder_of_the_node_goes_with_its_mounts() -> None:
    document = pytorchjob()
    pod = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"][0] = {"name": "data", "hostPath": {"path": "/mnt"}}
    conversion = convert(document)
    assert "volumes" not in conversion.job["spec"]["template"]
    assert any(path.endswith("volumes[0].hostPath") for path in left_out(conversion))
    assert any(path.endswith("volumeMounts[0]") for path in left_out(conversion))


def test_what_runs_beside_the_training_is_a_sidecar() -> None:
    document = pytorchjob()
    pod = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["initContainers"] = [
        {"name": "fetch", "command": ["fetch"]},
        {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
    ]
    limits = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    logs = {"name": "logs", "image": "logs:1", "resources": {"limits": limits}, "tty": True}
    pod["containers"].append(logs)
    conversion = convert(document)
    template = conversion.job["spec"]["template"]
    assert template["initContainers"] == [{"name": "fetch", "command": ["fetch"]}]
    assert template["sidecars"] == [
        {"name": "proxy", "image": "proxy:1"},
        {"name": "logs", "image": "logs:1", "resources": {"cpu": "1", "memory": "1Gi"}},
    ]
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[1]"
    assert {f"{at}.tty", f"{at}.resources.limits.ephemeral-storage"} <= set(left_out(conversion))
    checks = [note.path for note in conversion.notes if note.fate is Fate.CHECK]
    assert at in checks
    assert broken_rules(parse(TrainingJobSpec, conversion.job["spec"])) == ()


def test_a_master_that_differs_is_a_pod_like_the_others_and_its_difference_is_named() -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    roles = document["spec"]["pytorchReplicaSpecs"]
    roles["Worker"] = copy.deepcopy(roles["Worker"])
    roles["Master"]["template"]["spec"]["containers"][0]["image"] = "registry.example.com/other:1"
    conversion = convert(document)
    assert conversion.job["spec"]["nodes"] == 4
    assert conversion.job["spec"]["template"]["image"] == "registry.example.com/nlp/sft:2.1"
    path = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].image"
    assert path in left_out(conversion)


def test_pods_without_gpus_are_a_role_beside_the_ranks() -> None:
    document = copy.deepcopy(DOCUMENTS[2])
    tasks = document["spec"]["tasks"]
    tasks[1] = copy.deepcopy(tasks[1])
    del tasks[0]["template"]["spec"]["containers"][0]["resources"]
    conversion = convert(document)
    spec = conversion.job["spec"]
    assert spec["nodes"] == 2
    assert "launch" not in spec["template"]
    (role,) = spec["roles"]
    assert (role["name"], "gpusPerNode" in role, "image" in role) == ("master", False, False)
    assert role["command"] == tasks[0]["template"]["spec"]["containers"][0]["command"]


def test_the_task_that_completes_a_job_does_so_as_a_role() -> None:
    document = copy.deepcopy(DOCUMENTS[2])
    first = document["spec"]["tasks"][0]
    first["policies"] = [
        {"event": "TaskCompleted", "action": "CompleteJob"},
        {"event": "PodEvicted", "action": "RestartJob"},
    ]
    conversion = convert(document)
    (role,) = conversion.job["spec"]["roles"]
    assert role["completesJob"] is True
    assert "spec.tasks[0].policies[1]" in left_out(conversion)


def test_volumes_of_a_role_join_those_of_the_template_unless_another_has_the_name() -> None:
    document = copy.deepcopy(MPI_JOB)
    launcher = document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    launcher["volumes"] = [
        {"name": "keys", "secret": {"secretName": "ssh"}},
        {"name": "data", "emptyDir": {}},
    ]
    launcher["containers"][0]["volumeMounts"] = [
        {"name": "keys", "mountPath": "/keys"},
        {"name": "data", "mountPath": "/data"},
    ]
    worker = document["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}]
    worker["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    conversion = convert(document)
    spec = conversion.job["spec"]
    assert {volume["name"] for volume in spec["template"]["volumes"]} == {"keys", "data"}
    (role,) = spec["roles"]
    assert [mount["name"] for mount in role["volumeMounts"]] == ["keys"]
    assert any("has another volume" in text for text in left_out(conversion).values())


@pytest.mark.parametrize(
    ("name", "taken", "made"),
    [
        ("Launcher", (), "launcher"),
        ("main", (), "role-main"),
        ("0_ps", (), "role-0-ps"),
        ("---", (), "role"),
        ("a" * 30, ("a" * 20,), f"{'a' * 18}-2"),
        ("drumline-x", (), "role-drumline-x"),
    ],
)
def test_a_role_gets_a_name_that_it_can_have(name: str, taken: tuple[str, ...], made: str) -> None:
    assert role_name(name, taken=taken) == made
    parse(RoleSpec, {"name": made})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"image": None}, "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image"),
        ({"resources": {}}, "spec.pytorchReplicaSpecs.Worker.template"),
        ({"env": "x"}, "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env"),
    ],
)
def test_what_cannot_be_a_trainingjob_names_the_field(change: dict[str, Any], path: str) -> None:
    document = pytorchjob()
    container(document).update(change)
    with pytest.raises(ConversionError) as refused:
        convert(document)
    assert refused.value.path == path


def test_a_key_that_yaml_reads_as_a_number_is_text() -> None:
    document = pytorchjob()
    document["metadata"]["labels"] = {1: "a"}
    container(document)["resources"]["limits"][2] = "1"
    with pytest.raises(ConversionError, match=r"spec\.resources"):
        convert(document)
    del container(document)["resources"]["limits"][2]
    assert convert(document).job["metadata"]["labels"] == {"1": "a"}


def test_a_job_without_a_queue_asks_for_it() -> None:
    with pytest.raises(ConversionError, match="--queue"):
        convert_document(TRAIN_JOB, group="trainer.kubeflow.org", kind="TrainJob", wanted=Wanted())


def test_a_trainjob_takes_what_it_says_itself() -> None:
    conversion = convert(TRAIN_JOB)
    assert conversion.job["spec"] == {
        "queue": "q",
        "nodes": 2,
        "gpusPerNode": 8,
        "template": {
            "image": "registry.example.com/sft:1",
            "launch": "PerPod",
            "command": ["torchrun", "train.py"],
            "env": [{"name": "LR", "value": "0.1"}],
        },
    }
    assert any(note.path == "spec.runtimeRef" for note in conversion.notes)


def test_the_replicated_job_whose_success_counts_decides_as_a_role() -> None:
    document = copy.deepcopy(DOCUMENTS[1])
    workers = document["spec"]["replicatedJobs"][0]
    driver = copy.deepcopy(workers)
    driver["name"] = "driver"
    driver["template"]["spec"].update(parallelism=1, completions=1)
    container = driver["template"]["spec"]["template"]["spec"]["containers"][0]
    container.update(command=["drive"], resources={})
    document["spec"]["replicatedJobs"].append(driver)
    document["spec"]["successPolicy"] = {"operator": "Any", "targetReplicatedJobs": ["driver"]}
    conversion = convert(document)
    (role,) = conversion.job["spec"]["roles"]
    assert role == {"name": "driver", "completesJob": True, "command": ["drive"]}
    assert "spec.successPolicy.operator" in left_out(conversion)
