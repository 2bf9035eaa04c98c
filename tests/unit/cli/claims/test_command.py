"""`drumline cp` and `export` with claims, by an API server and a kubectl of this test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.claims import command
from drumline_cli.claims.claim_pod import ClaimPod, manifest, waits_for
from drumline_cli.claims.export import checkpoint_of
from drumline_cli.claims.paths import claim_copy, claim_path
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.program import main
from tests.unit.cli.manifests import kubeconfig
from tests.unit.cli.run.test_command import CORE, Served, serving

KUBECTL = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
RUNNING: dict[str, Any] = {"containerStatuses": [{"name": "files", "state": {"running": {}}}]}


class ClaimServer(Served):
    """An API server whose pods run at once, or never."""

    pod: dict[str, Any] = RUNNING

    def read(self, path: str) -> tuple[int, Any]:
        if path.startswith(f"{CORE}/pods/"):
            return 200, {"metadata": {"name": "p"}, "status": self.pod}
        return super().read(path)


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pods have the claim."""
    stand_in = tmp_path / "bin" / "kubectl"
    stand_in.parent.mkdir()
    stand_in.write_text(KUBECTL)
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(command, "MOUNT", str(tmp_path / "claim"))
    monkeypatch.delenv("DRUMLINE_IMAGE", raising=False)
    return tmp_path / "claim"


def copied(folder: Path, served: Served, *words: str) -> int:
    with serving(served) as server:
        config = kubeconfig(folder, server)
        return main(["cp", "--kubeconfig", str(config), "--image", "any:1", *words])


def test_a_file_goes_to_a_claim_and_back_without_a_gpu(claim: Path, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    served = ClaimServer()
    assert copied(tmp_path, served, str(tmp_path / "data.jsonl"), "claim:corpus/books/a") == 0
    assert (claim / "books" / "a").read_text() == "{}\n"
    ((path, pod),) = served.created
    assert path == f"{CORE}/pods"
    (container,) = pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert served.deleted == [f"{CORE}/pods/{pod['metadata']['name']}"]
    assert copied(tmp_path, ClaimServer(), "claim:corpus/books/a", str(tmp_path / "back")) == 0
    assert (tmp_path / "back").read_text() == "{}\n"


@pytest.mark.parametrize("target", ["books/", "books", ""], ids=["slash", "folder", "top"])
def test_a_file_that_goes_to_a_folder_keeps_its_name(
    claim: Path, tmp_path: Path, target: str
) -> None:
    (claim / "books").mkdir(parents=True)
    if (
        target == "books"
    ):  # without the slash, the target is a folder only if it exists and has files
        (claim / "books" / "old").touch()
    (tmp_path / "data.jsonl").write_text("{}\n")
    for _ in range(2):
        assert (
            copied(tmp_path, ClaimServer(), str(tmp_path / "data.jsonl"), f"claim:c/{target}") == 0
        )
        assert (claim / target / "data.jsonl").read_text() == "{}\n"


def test_a_pod_that_cannot_start_is_deleted_and_says_why(
    claim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = ClaimServer()
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    served.pod = {"containerStatuses": [{"name": "files", "state": {"waiting": waiting}}]}
    assert copied(tmp_path, served, "claim:corpus/a", str(tmp_path / "back")) == 1
    assert "ImagePullBackOff: no such image" in capsys.readouterr().err
    assert len(served.deleted) == 1
    assert not claim.exists()


def test_a_claim_that_does_not_exist_is_not_waited_for(
    claim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = ClaimServer()
    message = '0/3 nodes are available: persistentvolumeclaim "corpus" not found. not found'
    unbound = {"type": "PodScheduled", "status": "False", "message": message}
    served.pod = {"phase": "Pending", "conditions": [unbound]}
    back = str(tmp_path / "back")
    assert copied(tmp_path, served, "claim:corpus/a", back, "--wait", "0") == 1
    assert "cannot start: 0/3 nodes are available: persist" in capsys.readouterr().err
    assert len(served.deleted) == 1
    assert not claim.exists()


def test_mistakes_are_named_before_a_pod_is_made(
    claim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = ClaimServer()
    for words, problem in (
        (("none", "claim:corpus/a"), "no such file"),
        (("claim:a/b", "claim:c/d"), "one side"),
        (("claim:a/../b", "x"), "claim:NAME/PATH"),
        (("claim:a/b", "x", "--rank", "1"), "--rank"),
    ):
        assert copied(tmp_path, served, *words) == 2
        assert problem in capsys.readouterr().err
    assert served.created == []
    assert not claim.exists()


def test_paths_name_a_claim_and_stay_in_it() -> None:
    path = claim_path("claim:corpus/a//b/")
    assert path is not None
    assert (path.claim, path.path, path.is_folder) == ("corpus", "a/b", True)
    assert [claim_path(f"claim:c{end}").is_folder for end in ("", "/", "/a")] == [True, True, False]
    assert claim_path("train-kqwz:/tmp/x") is None
    assert claim_copy("a", "b") is None
    for text in ("claim:", "claim:A/b", "claim:a/../b", "claim:a//etc"):
        with pytest.raises(BadInput):
            claim_path(text)


def test_the_pod_is_restricted_and_mounts_each_claim_once() -> None:
    claims = {"/checkpoints": ("runs", True), "/target": ("runs", False), "/base": ("models", True)}
    pod = ClaimPod(name="p", image="any:1", claims=claims, user=1000)
    spec = manifest(pod)["spec"]
    names = [each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"][:-1]]
    assert names == ["runs", "models"]
    (container,) = spec["containers"]
    read_only = {each["mountPath"]: each.get("readOnly") for each in container["volumeMounts"]}
    assert read_only == {"/checkpoints": True, "/target": False, "/base": True, "/scratch": None}
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["activeDeadlineSeconds"]
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "no nodes"}
    assert waits_for({"conditions": [unscheduled]}) == "no nodes"


def test_an_export_reads_the_newest_checkpoint_of_the_job() -> None:
    def job(keeps: dict[str, Any] | None, **status: Any) -> dict[str, Any]:
        spec = {"queue": "q", "trainer": {}, "checkpoint": keeps}
        TrainingJobSpec.model_validate({key: value for key, value in spec.items() if value})
        metadata = {"name": "llama", "namespace": "team", "uid": "12345678-9"}
        return {"metadata": metadata, "spec": spec, "status": status}

    claim = {"claimName": "runs"}
    kept = checkpoint_of(job(claim, checkpoint={"step": 500}), step=None)
    assert (kept.claim, kept.folder) == ("runs", "/checkpoints/llama-12345678/step-00000500")
    kept = checkpoint_of(job({**claim, "path": "a"}, checkpoint={"step": 5}), step=7)
    assert kept.folder == "/checkpoints/a/step-00000007"
    bucket = {"bucket": "s3://runs/team", "secretName": "keys"}
    kept = checkpoint_of(job(bucket, checkpoint={"step": 1}), step=None)
    assert kept.folder == "s3://runs/team/llama-12345678/step-00000001"
    assert all(each["valueFrom"]["secretKeyRef"]["name"] == "keys" for each in kept.env)
    assert kept.env
    with pytest.raises(NotAnswered, match="no checkpoint yet"):
        checkpoint_of(job(claim), step=None)
    with pytest.raises(BadInput, match="keeps no checkpoints"):
        checkpoint_of(job(None), step=None)
