"""The kinds as the API server serves them: established, structural, explained and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.integration.api.conftest import GROUP, PLURALS, VERSION, Kubectl, Server
from tests.integration.api.manifests import Json, manifest


@pytest.mark.parametrize("plural", PLURALS.values())
def test_a_kind_is_established_and_structural(server: Server, plural: str) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUP}"
    conditions = server.get(path).body["status"]["conditions"]
    assert {condition["type"]: condition["status"] for condition in conditions} == {
        "NamesAccepted": "True",
        "Established": "True",
    }


def test_discovery_lists_short_names_category_and_status(server: Server) -> None:
    listed = server.get(f"/apis/{GROUP}/{VERSION}").body["resources"]
    kinds = {item["name"]: item for item in listed if "/" not in item["name"]}
    assert {item["name"] for item in listed} - set(kinds) == {f"{name}/status" for name in kinds}
    assert {
        name: (item["shortNames"], item["categories"], item["namespaced"])
        for name, item in kinds.items()
    } == {
        "trainingjobs": (["tj"], ["drumline"], True),
        "trainingqueues": (["tq"], ["drumline"], False),
        "gpupools": (["gp"], ["drumline"], False),
    }


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("trainingjob", "all of its pods run, or none"),
        ("trainingjob.spec.topology", "the whole gang must be in one domain"),
        ("trainingjob.spec.trainer.overrides", "most 16 KiB"),
        ("trainingjob.spec.checkpoint.everySteps", "Default: 50."),
        ("trainingqueue.spec.quotas", "one per GpuPool"),
        ("gpupool.spec.topologyLevels", "broadest first"),
    ],
)
def test_kubectl_explain_says_what_a_field_is(kubectl: Kubectl, field: str, says: str) -> None:
    assert says in " ".join(kubectl("explain", field).split())


STATUS: Json = {
    "phase": "Running",
    "reason": "Training",
    "message": "step 40 of 100",
    "ready": "2/4",
    "step": 40,
    "loss": "2.31",
    "restarts": 1,
    "tokensPerSecond": 9000,
}


@pytest.fixture
def shown(server: Server, kubectl: Kubectl) -> Iterator[Json]:
    """A job with a status, written by the subresource alone, and by no operator of other tests."""
    job = server.create(manifest("TrainingJob", name="shown", managedBy="example.com/test")).body
    assert "status" not in job
    change = json.dumps({"status": STATUS, "spec": {"queue": "stolen"}})
    patch = ("patch", "tj", "shown", "-n", server.namespace, "--subresource=status", "-o", "json")
    yield json.loads(kubectl(*patch, "--type=merge", "-p", change))
    server.delete(job)


def cells(table: str) -> dict[str, str]:
    """A table of one row, by column; the columns begin where their names do."""
    header, row = table.strip().splitlines()
    columns = list(re.finditer(r"\S+", header))
    ends = [column.start() for column in columns[1:]] + [None]
    return {
        column.group(): row[column.start() : end].strip()
        for column, end in zip(columns, ends, strict=True)
    }


@pytest.mark.usefixtures("shown")
def test_kubectl_get_shows_how_a_job_stands(server: Server, kubectl: Kubectl) -> None:
    get = ("get", "tj", "shown", "-n", server.namespace)
    narrow, wide = cells(kubectl(*get)), cells(kubectl(*get, "-o", "wide"))
    assert narrow.pop("AGE")
    assert wide.pop("AGE")
    assert narrow == {
        "NAME": "shown",
        "QUEUE": "research",  # the status subresource writes status only
        "PHASE": "Running",
        "REASON": "Training",
        "READY": "2/4",
        "STEP": "40",
        "LOSS": "2.31",
    }
    assert wide == {
        **narrow,
        "EXPECTED": "",  # a job that runs waits for no start
        "ENDS": "",  # its agent has not said how long its steps take
        "MESSAGE": "step 40 of 100",
        "RESTARTS": "1",
        "TOKENS/S": "9000",
    }


@pytest.mark.usefixtures("shown")
def test_jobs_are_selected_by_queue_and_suspension(server: Server, kubectl: Kubectl) -> None:
    def names(selector: str) -> str:
        get = ("get", "tj", "-n", server.namespace, "-o", "name", "--field-selector", selector)
        return kubectl(*get)

    assert "trainingjob.drumline.dev/shown" in names("spec.queue=research,spec.suspend=false")
    assert "shown" not in names("spec.queue=other")
    assert "shown" not in names("spec.suspend=true")


def test_a_phase_outside_the_list_is_refused(server: Server, shown: Json) -> None:
    asleep = {**shown, "status": {"phase": "Sleeping"}}
    answer = server.replace(asleep, dry_run=True, subresource="status")
    assert 'status.phase: Unsupported value: "Sleeping"' in answer.message


def test_a_status_is_one_field_to_the_api_server(server: Server, shown: Json) -> None:
    """Each field that it keeps an owner of is worked out again at every status write."""
    owners = server.read(shown).body["metadata"]["managedFields"]
    (status,) = [entry for entry in owners if entry.get("subresource") == "status"]
    assert status["fieldsV1"] == {"f:status": {}}
