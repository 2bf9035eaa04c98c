"""A job made of another one."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.jobs.clone import cloned, shared_parts


def a_job(**spec: Any) -> dict[str, Any]:
    code = {"digest": "sha256:0", "configMaps": ["drumline-code-0-0", "mine"]}
    template = {"image": "a:1", "command": ["python", "a.py"], "args": ["-v"], "code": code}
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7"},
        "spec": {"queue": "q", "nodes": 2, "suspend": True, "template": template, **spec},
        "status": {"phase": "Failed"},
    }


def spec_of(job: dict[str, Any], *changes: str, command: tuple[str, ...] = ()) -> Any:
    return cloned(job, name="b", changes=changes, command=command)["spec"]


def test_a_clone_is_a_new_job_with_the_same_spec_that_is_not_suspended() -> None:
    job = a_job()
    made = cloned(job, name="b", changes=(), command=())
    assert made["metadata"] == {"name": "b", "namespace": "team"}
    assert "status" not in made
    expected = a_job()["spec"]
    del expected["suspend"]
    assert made["spec"] == expected
    assert shared_parts(made) == ["drumline-code-0-0"]
    assert shared_parts({"spec": {"trainer": {}}}) == []
    made["spec"]["template"]["image"] = "changed"
    assert job == a_job()


def test_fields_are_set_in_json_or_as_text_and_removed_by_null() -> None:
    spec = spec_of(
        a_job(gpuPool="h100", trainer={"steps": 1}),
        *("nodes=4", "spec.template.image=b:2", "gpuPool=null", "trainer.overrides.lr=3e-4"),
        *('resources={"cpu": "8"}', "queue=other=1"),
    )
    assert (spec["nodes"], spec["template"]["image"], spec["queue"]) == (4, "b:2", "other=1")
    assert "gpuPool" not in spec
    assert spec["trainer"] == {"steps": 1, "overrides": {"lr": 3e-4}}
    assert spec["resources"] == {"cpu": "8"}


def test_another_command_takes_the_arguments_along() -> None:
    template = spec_of(a_job(), command=("python", "b.py"))["template"]
    assert template["command"] == ["python", "b.py"]
    assert "args" not in template


@pytest.mark.parametrize("change", ["nodes", "=4", "a..b=1", ".".join("abcdefghij") + "=1"])
def test_a_change_of_another_form_is_refused(change: str) -> None:
    with pytest.raises(BadInput, match="want path=value"):
        spec_of(a_job(), change)


def test_what_has_no_fields_is_set_as_a_whole() -> None:
    with pytest.raises(BadInput, match="nodes has no fields"):
        spec_of(a_job(), "nodes.a=1")
    with pytest.raises(BadInput, match="no template, so it has no command"):
        spec_of(a_job(template=None), command=("python",))


def test_two_jobs_do_not_write_to_one_checkpoint() -> None:
    job = a_job(checkpoint={"claimName": "c", "path": "runs/a"})
    with pytest.raises(BadInput, match="runs/a"):
        spec_of(job)
    for change in ("checkpoint.path=runs/b", "checkpoint.path=null", "checkpoint.claimName=d"):
        assert spec_of(job, change)["checkpoint"] != job["spec"]["checkpoint"]
    assert spec_of(a_job(checkpoint={"claimName": "c"}))["checkpoint"] == {"claimName": "c"}
    job = a_job(checkpoint={"bucket": "s3://saves", "path": "runs/a"})
    with pytest.raises(BadInput, match="runs/a"):
        spec_of(job)
    assert spec_of(job, "checkpoint.bucket=s3://others")["checkpoint"]["path"] == "runs/a"
