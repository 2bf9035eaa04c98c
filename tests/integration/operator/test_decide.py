"""What `drumline decide` says of `kubectl get`'s output is what the operator then does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.kube import Json, Kube, phase_is, reason_is
from tests.operator_process import ROOT, OperatorProcess
from tools.cluster import Cluster
from tools.cluster.binaries import ensure_binaries

KINDS = "nodes,pods,gpupools,trainingqueues,priorityclasses,trainingjobs.drumline.dev"
"""Other tests serve TrainingJobs under a second group, which kubectl prefers without ours."""


def dump(cluster: Cluster, *output: str) -> str:
    """The whole cluster as people print it."""
    kubectl = ensure_binaries(["kubectl"], say=print)["kubectl"]
    command = [kubectl, f"--kubeconfig={cluster.kubeconfig}", "get", KINDS, "-A", *output]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def decided(namespace: str, *options: str, text: str | None = None) -> dict[str, dict[str, Any]]:
    """The verdicts about one namespace's jobs, by name.

    Args:
        namespace: of the jobs.
        options: where the objects come from.
        text: of standard input.
    """
    command = [sys.executable, "-m", "drumline", "decide", "-o", "json", "--no-forecast"]
    done = subprocess.run(
        [*command, *options],
        input=text,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = {line["job"]: line for line in json.loads(done.stdout)["verdicts"]}
    return {key.partition("/")[2]: line for key, line in lines.items() if key.startswith(namespace)}


def nodes_of(job: Json) -> list[str]:
    places = job["status"]["assignment"]
    return [places.get("prefix", "") + rest for rest in places["nodes"]]


@pytest.mark.extended(keep=4, of="operators of a test")
@pytest.mark.usefixtures("no_operator")
def test_the_operator_does_what_decide_printed(
    site: Site, api: Kube, control_plane: Cluster, tmp_path: Path
) -> None:
    api.ensure(HIGH_CLASS)
    api.wait_all(  # a new node has a taint until the controller manager has seen it
        "nodes",
        None,
        lambda nodes: not any(node["spec"].get("taints") for node in nodes),
        labels=f"drumline.test/site={site.namespace}",
    )
    rack = {"required": "rack"}
    site.submit("pair", nodes=2, gpusPerNode=8, topology=rack)
    site.submit("single", nodes=1, gpusPerNode=8)
    site.submit("large", nodes=5, gpusPerNode=8)
    printed = decided(site.namespace, "-f", "-", text=dump(control_plane, "-ojson"))
    live = f"--kubeconfig={control_plane.kubeconfig}"
    assert decided(site.namespace, live) == printed
    absent = {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "not-there", "namespace": site.namespace},
        "spec": api.get("trainingjobs", "pair", site.namespace)["spec"],
    }
    dry = decided(site.namespace, live, f"--manifest={json.dumps(absent)}")
    assert {"not-there", *printed} == dry.keys()
    assert {name: line["verdict"] for name, line in printed.items()} == {
        "pair": "Placed",
        "single": "Placed",
        "large": "Waits",
    }
    operator = OperatorProcess(kubeconfig=api.kubeconfig, folder=tmp_path)
    operator.start()
    try:
        for name in ("pair", "single"):
            assert nodes_of(site.wait(name, phase_is("Running"))) == printed[name]["nodes"]
        large = site.wait("large", reason_is(printed["large"]["reason"]))
        assert large["status"]["message"].startswith(printed["large"]["message"])
    finally:
        operator.stop()
    site.submit("high", nodes=3, gpusPerNode=8, priorityClassName=HIGH)
    printed = decided(site.namespace, "-f", "-", text=dump(control_plane, "-oyaml"))
    assert (printed["high"]["verdict"], printed["high"]["reason"]) == ("Waits", "WaitingForVictims")
    victims = {name for name, line in printed.items() if line["verdict"] == "Preempted"}
    operator.start()
    try:
        assert nodes_of(site.wait("high", phase_is("Running"))) == printed["high"]["nodes"]
        jobs = api.list("trainingjobs", site.namespace)
        waiting = {job["metadata"]["name"] for job in jobs if job["status"]["phase"] == "Pending"}
        assert victims | {"large"} == waiting
    finally:
        operator.stop()
