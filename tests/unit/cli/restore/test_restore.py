"""What is restored goes on where it was, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.lifecycle.manifests.trainer_config import checkpoint_folder
from drumline_api.crds import DEFINITIONS
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJob
from drumline_cli.program import main
from tests.texts import missing

Json = dict[str, Any]

API = "drumline.dev/v1alpha1"
MODELS = {definition.kind: definition.model for definition in DEFINITIONS}
UID = "0b5a2f7e-1111-4222-8333-444455556666"
SPEC: Json = {
    "queue": "research",
    "nodes": 2,
    "gpusPerNode": 4,
    "trainer": {"steps": 100},
    "checkpoint": {"claimName": "checkpoints", "everySteps": 10},
}


def saved(kind: str, *, api: str = API, **parts: Any) -> Json:
    metadata = {
        "name": "llama",
        "uid": UID,
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "labels": {"team": "nlp"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "owner": "ada"},
        "ownerReferences": [{"kind": "TrainingJob", "uid": UID}],
        **parts.pop("metadata", {}),
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **parts}


def run(
    objects: list[Json], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[Json], str]:
    """The manifests that the command prints, and its notes."""
    file = folder / "backup.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert main(["restore", str(file)]) == 0
    printed = capsys.readouterr()
    return list(yaml.safe_load_all(printed.out)), printed.err


def test_a_job_goes_on_in_the_folder_of_its_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = saved(
        "TrainingJob", metadata={"namespace": "team"}, spec=SPEC, status={"phase": "Running"}
    )
    (manifest,), notes = run([job], tmp_path, capsys)
    assert manifest == {
        "apiVersion": API,
        "kind": "TrainingJob",
        "metadata": {
            "name": "llama",
            "namespace": "team",
            "labels": {"team": "nlp"},
            "annotations": {"owner": "ada"},
        },
        "spec": {**SPEC, "checkpoint": {**SPEC["checkpoint"], "path": "llama-0b5a2f7e"}},
    }
    old, new = (parse(TrainingJob, each).spec for each in (job, manifest))
    assert checkpoint_folder(new, name="llama", uid="another") == checkpoint_folder(
        old, name="llama", uid=UID
    )
    assert not missing(notes, "team/llama", "llama-0b5a2f7e")


def test_a_path_of_its_own_stays_and_a_job_without_checkpoints_is_said_to_begin_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {**SPEC, "checkpoint": {"claimName": "checkpoints", "path": "shared/llama"}}
    without = {name: value for name, value in SPEC.items() if name != "checkpoint"}
    manifests, notes = run(
        [saved("TrainingJob", spec=named), saved("TrainingJob", spec=without)], tmp_path, capsys
    )
    assert [manifest["spec"] for manifest in manifests] == [named, without]
    assert "it has no checkpoints and starts from the beginning" in notes


def test_a_job_goes_on_below_the_prefix_of_its_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {**SPEC, "checkpoint": {"bucket": "s3://saves/team"}}
    (manifest,), notes = run([saved("TrainingJob", spec=spec)], tmp_path, capsys)
    assert manifest["spec"]["checkpoint"]["path"] == "llama-0b5a2f7e"
    assert not missing(notes, "s3://saves/team/llama-0b5a2f7e")


def test_what_had_ended_and_what_is_not_ours_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"phase": "Succeeded", "finishedAt": "2026-11-20T12:00:00Z"}
    objects = [
        saved("TrainingJob", spec=SPEC, status=ended),
        saved("Deployment", api="apps/v1", spec={}),
        saved("ConfigMap", api="v1", data={"theirs": "1"}),
        saved("TrainingQueue", spec={"quotas": [{"gpuPool": "gpus", "nominalGpus": 8}]}),
    ]
    manifests, notes = run(objects, tmp_path, capsys)
    assert [manifest["kind"] for manifest in manifests] == ["TrainingQueue"]
    assert not missing(notes, "default/llama")
    assert "left out: Deployment" in notes
    assert "left out: ConfigMap" in notes


def test_what_jobs_need_comes_first_and_their_code_without_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = saved(
        "ConfigMap",
        api="v1",
        metadata={"name": "drumline-code-1", "namespace": "team"},
        binaryData={"code": "AAAA"},
        immutable=True,
    )
    pool = saved("GpuPool", spec={"nodeSelector": {"gpu": "true"}}, status={"nodes": 3})
    queue = saved("TrainingQueue", spec={"quotas": [{"gpuPool": "gpus", "nominalGpus": 8}]})
    job = saved("TrainingJob", spec=SPEC)
    manifests, _ = run([job, code, queue, pool], tmp_path, capsys)
    assert [manifest["kind"] for manifest in manifests] == [
        *("GpuPool", "TrainingQueue", "ConfigMap", "TrainingJob")
    ]
    assert manifests[2]["binaryData"] == {"code": "AAAA"}
    assert manifests[2]["immutable"] is True
    assert not [each for each in manifests if {"ownerReferences", "uid"} & set(each["metadata"])]
    for manifest in manifests:
        if manifest["kind"] in MODELS:
            parse(MODELS[manifest["kind"]], manifest)


def test_a_backup_with_nothing_in_it_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "backup.yaml"
    file.write_text(yaml.safe_dump(saved("Deployment", api="apps/v1", spec={})))
    assert main(["restore", str(file)]) == 2
    assert "nothing to restore" in capsys.readouterr().err


def test_what_only_some_users_may_apply_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quotas = [{"gpuPool": "h100", "nominalGpus": 8}]
    override = {"job": "team/late", "until": "2026-12-01T00:00:00Z", "grantedBy": "ada"}
    queue = saved("TrainingQueue", spec={"quotas": quotas, "overrides": [override]})
    job = saved("TrainingJob", spec={**SPEC, "user": "bob"}, metadata={"namespace": "team"})
    (restored_queue, restored_job), notes = run([queue, job], tmp_path, capsys)
    assert restored_queue["spec"] == {"quotas": quotas}
    assert restored_job["spec"]["user"] == "bob"
    assert not missing(notes, "its overrides are left out", "only bob or a trusted user")
