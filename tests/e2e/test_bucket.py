"""A job whose checkpoints lie in a bucket, on real kubelets: its pod is killed, and it goes on.

The store is in the cluster's network. The Secret holds the keys of a user that owns that bucket and
may not even list another.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_trainer.checkpoint.bucket.index import INDEX_FILE, Index
from tests.e2e.site import Site
from tests.kube import Json, phase_is
from tests.object_store import BUCKET, ObjectStore, running, store_program
from tools.cluster import Cluster, kubectl
from tools.cluster.inside import strike
from tools.cluster.network import GATEWAY

PREFIX = "team-a"
SECRET = "checkpoint-keys"  # noqa: S105 - a name
USER = "trainer"
STEPS, EVERY = 600, 20


@pytest.fixture
def store(cluster: Cluster, tmp_path: Path) -> Iterator[ObjectStore]:
    """The server with its root's keys replaced by those of a user that owns the bucket."""
    entering = ("/usr/bin/nsenter", f"--net=/run/netns/{cluster.netns}", "--")
    with running(tmp_path / "store", address=GATEWAY, entering=entering) as store:
        root, user = store.environment(), replace(store, key=USER, secret=secrets.token_hex(16))
        admin = (
            *(*entering, str(store_program()), "admin"),
            *("--access", root["AWS_ACCESS_KEY_ID"], "--secret", root["AWS_SECRET_ACCESS_KEY"]),
            *("--endpoint-url", root["AWS_ENDPOINT_URL"]),
        )
        made = ("create-user", "--access", USER, "--secret", user.secret, "--role", "user")
        owned = ("change-bucket-owner", "--bucket", BUCKET, "--owner", USER)
        for command in (made, owned):
            subprocess.run((*admin, *command), check=True, capture_output=True)
        yield user


def _secret(store: ObjectStore, namespace: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "stringData": store.environment(),
    }


def _saved(job: Json | None) -> bool:
    checkpoint = (job or {}).get("status", {}).get("checkpoint") or {}
    return checkpoint.get("step", 0) >= EVERY


def test_a_killed_job_goes_on_from_its_bucket(site: Site, store: ObjectStore) -> None:
    kubectl(site.cluster, "apply", "--filename=-", manifests=[_secret(store, site.namespace)])
    site.submit(
        "kept",
        nodes=1,
        gpusPerNode=2,
        trainer={"steps": STEPS},
        checkpoint={
            "bucket": f"s3://{BUCKET}/{PREFIX}",
            "path": "kept",
            "secretName": SECRET,
            "everySteps": EVERY,
            "keep": 2,
        },
    )
    saved = site.wait("kept", lambda job: _saved(job) or phase_is("Failed")(job))
    assert _saved(saved), saved["status"]
    (pod,) = site.pods("kept")
    strike(site.cluster, pod["metadata"]["uid"], 1, signal.SIGKILL)
    status = site.finish("kept")

    (pod,) = site.pods("kept")
    logs = site.logs(pod["metadata"]["name"])
    assert f"step {STEPS}/{STEPS} " in logs
    assert f"step {EVERY // 2}/{STEPS} " not in logs  # it went on, and did not begin again
    assert status["generation"] == 2
    assert status["checkpoint"]["step"] == STEPS
    objects = store.objects(f"{PREFIX}/kept")
    index = Index.parse(objects[INDEX_FILE].read_bytes(), where=PREFIX)
    assert sorted(index.places) == [STEPS - EVERY, STEPS]
    assert {name.split("/")[0] for name in objects} == {INDEX_FILE, *index.places.values()}
    assert index.owner.membership[0] == status["generation"]
    assert store.secret not in logs
