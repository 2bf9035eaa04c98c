"""The mutability table, row by row, as the API server applies it."""

from __future__ import annotations

import itertools

import pytest

from drumline_api.mutability import ONLY_WHILE_SUSPENDED
from drumline_api.trainingjob import TrainingJobSpec
from tests.integration.api.conftest import Server
from tests.integration.api.manifests import Json, laid_over, manifest, template_job

FULL: Json = {
    "priorityClassName": "low",
    "nodes": 2,
    "gpusPerNode": 2,
    "gpuPool": "gpus",
    "topology": {"required": "rack"},
    "resources": {"cpu": 2},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "team"}],
    "trainer": {"overrides": {"optimizer": {"learning_rate": 0.1}}},
    "checkpoint": {"claimName": "shared", "path": "runs/a"},
    "managedBy": "example.com/other",
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
}

ANY_TIME: dict[str, Json] = {
    "priorityClassName": {"priorityClassName": "high"},
    "priorityClassName removed": {"priorityClassName": None},
    "recovery": {"recovery": {"maxRestarts": 9}},
    "recovery's budgets": {
        "recovery": {"maxInfrastructureRestarts": 0, "budgetWindowSeconds": 3600}
    },
    "recovery's patience": {"recovery": {"hangTimeoutSeconds": 60, "lostAfterSeconds": 2}},
    "sweep": {"sweep": {"name": "lr", "maxParallel": 4}},
    "whenIdle": {"whenIdle": "Keep"},
    "spot": {"spot": "Never"},
    "maxPricePerGpuHour": {"maxPricePerGpuHour": "1.20"},
    "startDeadlineSeconds": {"startDeadlineSeconds": 9},
    "activeDeadlineSeconds": {"activeDeadlineSeconds": 9},
    "ttlSecondsAfterFinished": {"ttlSecondsAfterFinished": 9},
}
WHILE_SUSPENDED: dict[str, Json] = {
    "queue": {"queue": "other"},
    "gpuPool": {"gpuPool": "other"},
    "gpuPartition": {"gpuPartition": "nvidia.com/mig-1g.10gb", "gpusPerNode": 1},
    "gpuPool removed": {"gpuPool": None},
    "gpuPools": {"gpuPool": None, "gpuPools": ["gpus", "other"]},
    "group": {"group": {"name": "rl", "jobs": 2}},
    "after": {"after": [{"job": "tokenize", "condition": "Finished"}]},
    "user": {"user": "ann"},
    "topology": {"topology": {"required": "block"}},
    "topology removed": {"topology": None},
    "computeDomain": {"computeDomain": {}},
    "nodes": {"nodes": 4},
    "minNodes": {"minNodes": 1},
    "gpusPerNode": {"gpusPerNode": 4},
    "resources": {"resources": {"cpu": 4}},
    "nodeSelector": {"nodeSelector": {"zone": "b"}},
    "nodeAffinity": {
        "nodeAffinity": {"required": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
    },
    "tolerations": {"tolerations": [{"key": "other", "operator": "Exists"}]},
    "trainer": {"trainer": {"steps": 7}},
    "trainer's image": {"trainer": {"image": "registry.example.com/trainer:2"}},
    "trainer's overrides": {"trainer": {"overrides": {"optimizer": {"learning_rate": 0.2}}}},
    "trainer with another override": {
        "trainer": {"overrides": {"optimizer": None, "seed_of_nothing": {"learning_rate": 0.1}}}
    },
    "trainer with another override below": {
        "trainer": {"overrides": {"optimizer": {"learning_rate": None, "no_such_field": 0.1}}}
    },
    "checkpoint's interval": {"checkpoint": {"everySteps": 7}},
}
NEVER: dict[str, Json] = {
    "trainer.model": {"trainer": {"model": "small"}},
    "checkpoint.claimName": {"checkpoint": {"claimName": "other"}},
    "checkpoint.bucket": {"checkpoint": {"claimName": None, "bucket": "s3://saves"}},
    "checkpoint.path": {"checkpoint": {"path": "runs/b"}},
    "checkpoint": {"checkpoint": None},
    "managedBy": {"managedBy": "example.com/third"},
    "managedBy removed": {"managedBy": None},
    "trainer": {"trainer": None, "checkpoint": None, "template": {"image": "i"}},
}


@pytest.fixture(scope="module", params=["policy", "alone"])
def server(request: pytest.FixtureRequest, as_installed: Server, alone: Server) -> Server:
    """The rules over the whole spec, once in the policy and once in the CRD."""
    return {"policy": as_installed, "alone": alone}[request.param]


@pytest.fixture(scope="module")
def stored(server: Server) -> dict[bool, Json]:
    """The same job twice, by whether it is suspended."""
    answers = {
        suspend: server.create(
            manifest("TrainingJob", name=f"job-{suspend}".lower(), suspend=suspend, **FULL)
        )
        for suspend in (False, True)
    }
    assert {answer.code for answer in answers.values()} == {201}, answers
    return {suspend: answer.body for suspend, answer in answers.items()}


def changed(body: Json, change: Json, *, suspend: bool) -> Json:
    return {**body, "spec": laid_over(body["spec"], {**change, "suspend": suspend})}


@pytest.mark.parametrize(
    ("change", "was", "becomes"), [*itertools.product(ANY_TIME, (False, True), (False, True))]
)
def test_some_fields_change_at_any_time(
    server: Server, stored: dict[bool, Json], change: str, was: bool, becomes: bool
) -> None:
    answer = server.replace(changed(stored[was], ANY_TIME[change], suspend=becomes), dry_run=True)
    assert answer.code == 200, answer.message
    assert answer.body["spec"]["suspend"] is becomes


@pytest.mark.parametrize("becomes", [False, True], ids=["resumed", "still-suspended"])
@pytest.mark.parametrize("change", WHILE_SUSPENDED)
def test_most_fields_change_while_suspended(
    server: Server, stored: dict[bool, Json], change: str, becomes: bool
) -> None:
    body = changed(stored[True], WHILE_SUSPENDED[change], suspend=becomes)
    answer = server.replace(body, dry_run=True)
    assert answer.code == 200, answer.message
    assert answer.body["spec"] == body["spec"]


@pytest.mark.parametrize("becomes", [False, True], ids=["running", "suspended-at-once"])
@pytest.mark.parametrize("change", WHILE_SUSPENDED)
def test_most_fields_do_not_change_while_running(
    server: Server, stored: dict[bool, Json], change: str, becomes: bool
) -> None:
    body = changed(stored[False], WHILE_SUSPENDED[change], suspend=becomes)
    answer = server.replace(body, dry_run=True)
    field = change.split(maxsplit=1)[0].removesuffix("'s")
    assert answer.code == 422
    assert f"spec.{field}: " in answer.message
    assert f"{field} may change only while the job is suspended" in answer.message


ASSIGNMENT: Json = {"gpuPool": "gpus", "prefix": "node-", "nodes": ["a", "b"]}


@pytest.fixture(scope="module")
def leaving(server: Server) -> Json:
    """A job suspended a moment ago: the operator has not taken it off its nodes yet."""
    job = manifest("TrainingJob", name="leaving", suspend=True, **FULL)
    assert server.create(job).code == 201
    return with_assignment(server, job, ASSIGNMENT)


def with_assignment(server: Server, job: Json, assignment: Json | None) -> Json:
    """The object after the operator wrote this."""
    stored = server.read(job).body
    status: Json = {"phase": "Suspended"} if assignment is None else {"assignment": assignment}
    answer = server.replace({**stored, "status": status}, subresource="status")
    assert answer.code == 200, answer.message
    assert answer.body["status"] == status
    return answer.body


@pytest.mark.parametrize("becomes", [False, True], ids=["resumed", "still-suspended"])
@pytest.mark.parametrize("change", WHILE_SUSPENDED)
def test_most_fields_do_not_change_before_the_nodes_are_given_back(
    server: Server, leaving: Json, change: str, becomes: bool
) -> None:
    body = changed(leaving, WHILE_SUSPENDED[change], suspend=becomes)
    answer = server.replace(body, dry_run=True)
    field = change.split(maxsplit=1)[0].removesuffix("'s")
    assert answer.code == 422
    assert f"spec.{field}: " in answer.message
    wait = f"{field}: wait until the job has given its nodes back (phase Suspended)"
    assert wait in answer.message
    assert "set suspend: true" not in answer.message


@pytest.mark.parametrize("change", ANY_TIME)
def test_some_fields_change_while_the_nodes_are_given_back(
    server: Server, leaving: Json, change: str
) -> None:
    body = changed(leaving, ANY_TIME[change], suspend=True)
    answer = server.replace(body, dry_run=True)
    assert answer.code == 200, answer.message


LONGER: dict[str, Json] = {
    "raised": {"activeDeadlineSeconds": 61},
    "removed": {"activeDeadlineSeconds": None},
}


@pytest.fixture(scope="module")
def placed(server: Server) -> Json:
    """A job that holds nodes, with a deadline after 60 s."""
    job = manifest("TrainingJob", name="placed", **FULL)
    assert server.create(job).code == 201
    return with_assignment(server, job, ASSIGNMENT)


@pytest.mark.parametrize("change", LONGER)
def test_a_deadline_becomes_longer_only_while_the_job_holds_no_nodes(
    server: Server, stored: dict[bool, Json], placed: Json, change: str
) -> None:
    waiting = server.replace(changed(stored[False], LONGER[change], suspend=False), dry_run=True)
    assert waiting.code == 200, waiting.message
    running = server.replace(changed(placed, LONGER[change], suspend=False), dry_run=True)
    assert running.code == 422
    assert "spec.activeDeadlineSeconds: activeDeadlineSeconds may only become" in running.message
    assert "set suspend: true first" in running.message


def test_a_status_sent_along_does_not_open_the_spec(server: Server) -> None:
    job = manifest("TrainingJob", name="both", **FULL)
    assert server.create(job).code == 201
    stored = with_assignment(server, job, ASSIGNMENT)

    body = changed(stored, {"queue": "other"}, suspend=False)
    refused = server.replace({**body, "status": {"phase": "Running"}})
    assert refused.code == 422
    assert "spec.queue: queue may change only while the job is suspended" in refused.message

    taken = server.replace({**body, "status": {"phase": "Running"}}, subresource="status")
    assert taken.code == 200, taken.message
    assert taken.body["status"] == {"phase": "Running"}
    assert taken.body["spec"] == stored["spec"]


def test_every_changed_field_is_named(server: Server, stored: dict[bool, Json]) -> None:
    change: Json = {"queue": "other", "nodes": 4, "gpuPool": None}
    answer = server.replace(changed(stored[False], change, suspend=False), dry_run=True)
    for field in change:
        assert f"spec.{field}: {field} may change only while" in answer.message
    assert "spec.topology" not in answer.message


def test_a_job_gets_another_size_once_its_nodes_are_given_back(server: Server) -> None:
    job = manifest("TrainingJob", name="resized", suspend=True, **FULL)
    assert server.create(job).code == 201
    held = with_assignment(server, job, ASSIGNMENT)
    assert server.replace(changed(held, {"nodes": 4}, suspend=False)).code == 422

    free = with_assignment(server, job, None)
    resumed = server.replace(changed(free, {"nodes": 4}, suspend=False))

    assert resumed.code == 200, resumed.message
    assert resumed.body["spec"]["nodes"] == 4


@pytest.mark.parametrize("suspend", [False, True], ids=["running", "suspended"])
@pytest.mark.parametrize("change", NEVER)
def test_some_fields_never_change(
    server: Server, stored: dict[bool, Json], change: str, suspend: bool
) -> None:
    answer = server.replace(changed(stored[suspend], NEVER[change], suspend=suspend), dry_run=True)
    assert answer.code == 422
    assert f"spec.{change.removesuffix(' removed')}: " in answer.message
    assert "create a new job" in answer.message


@pytest.mark.parametrize("field", ["template", "roles"])
def test_a_template_and_its_roles_change_only_while_suspended(server: Server, field: str) -> None:
    changes: Json = {
        "template": {"args": ["--epochs=2"]},
        "roles": [{"name": "launcher", "nodes": 2}],
    }
    body = template_job(args=["--epochs=1"])
    body["metadata"]["name"] = field
    body["spec"]["roles"] = [{"name": "launcher"}]
    running = server.create(body).body
    change: Json = {field: changes[field]}
    refused = server.replace(changed(running, change, suspend=False), dry_run=True)
    assert f"spec.{field}: " in refused.message
    suspended = server.replace(changed(running, {}, suspend=True)).body
    assert server.replace(changed(suspended, change, suspend=False), dry_run=True).code == 200


def test_a_pools_gpu_resource_never_changes(server: Server) -> None:
    pool = server.create(manifest("GpuPool", name="mutability")).body
    try:
        body = {**pool, "spec": {**pool["spec"], "gpuResource": "amd.com/gpu"}}
        answer = server.replace(body, dry_run=True)
        assert "spec.gpuResource: " in answer.message
        assert "create another GpuPool" in answer.message
        relabelled = {
            **pool,
            "spec": {"nodeSelector": {"pool": "a"}, "podProfile": {"runtimeClassName": "nvidia"}},
        }
        assert server.replace(relabelled, dry_run=True).code == 200
    finally:
        server.delete(pool)


def test_the_unit_that_a_pools_quotas_count_never_changes(server: Server) -> None:
    small = {"resource": "nvidia.com/mig-1g.10gb", "parts": 1}
    partitions: Json = {"partsPerGpu": 7, "resources": [small]}
    pool = server.create(manifest("GpuPool", name="parts", partitions=partitions)).body
    plain = server.create(manifest("GpuPool", name="plain")).body
    try:
        more = {**partitions, "resources": [small, {"resource": "a.com/half", "parts": 3}]}
        for stored, change, refused in (
            (pool, {"partitions": {**partitions, "partsPerGpu": 8}}, "may never change"),
            (pool, {"partitions": None}, "never be added or removed"),
            (plain, {"partitions": partitions}, "never be added or removed"),
            (pool, {"partitions": more}, ""),
            (plain, {"devices": {"driver": "a", "deviceClassName": "b"}}, "create another GpuPool"),
        ):
            body = {**stored, "spec": laid_over(stored["spec"], change)}
            answer = server.replace(body, dry_run=True)
            assert refused in answer.message if refused else answer.code == 200, answer.message
    finally:
        server.delete(pool)
        server.delete(plain)


def test_every_field_of_the_spec_is_in_the_table() -> None:
    fields = {field.alias for field in TrainingJobSpec.model_fields.values()}
    tested = {
        name.split()[0].split(".")[0].removesuffix("'s")
        for name in (*ANY_TIME, *WHILE_SUSPENDED, *NEVER)
    }
    of_templates = {"template", "roles"}
    assert fields == tested | of_templates | {"suspend"}
    assert {name.split()[0].removesuffix("'s") for name in WHILE_SUSPENDED} | of_templates == set(
        ONLY_WHILE_SUSPENDED
    )
