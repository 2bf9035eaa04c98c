"""A job of a file beside the cluster's objects: its namespace is the one that kubectl would use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline_cli.program import main
from tests.unit.cli.decide.test_command import a_job, a_node, a_pool, a_queue
from tests.unit.cli.test_program import api_server

DRUMLINE = "/apis/drumline.dev/v1alpha1"
NAMESPACES = "/api/v1/namespaces"


def listed(*items: Any) -> tuple[int, Any]:
    return 200, {"metadata": {"resourceVersion": "5"}, "items": list(items)}


def site(*namespaces: str) -> dict[str, tuple[int, Any]]:
    """A cluster of one node. Without namespaces they may not be listed."""
    named = [{"metadata": {"name": name}} for name in namespaces]
    return {
        "/api/v1/nodes": listed(a_node("node-1")),
        "/apis/scheduling.k8s.io/v1/priorityclasses": listed(),
        f"{DRUMLINE}/gpupools": listed(a_pool()),
        f"{DRUMLINE}/trainingqueues": listed(a_queue()),
        f"{DRUMLINE}/trainingjobs": listed(),
        "/api/v1/pods": listed(),
        **({NAMESPACES: listed(*named)} if named else {}),
    }


def decided(
    folder: Path, capsys: pytest.CaptureFixture[str], job: Any, *namespaces: str
) -> tuple[int, str, str]:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    with api_server(folder, site(*namespaces)) as (config, _):
        words = ("decide", "--live", "--no-forecast", "-f", str(file), "-o", "json")
        code = main([*words, "--kubeconfig", str(config)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_namespace_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job("a")
    job["metadata"]["namespace"] = "nosuch"
    code, _, err = decided(tmp_path, capsys, job, "team")
    assert code == 2
    assert "job.yaml, line " in err
    assert 'namespaces "nosuch" not found' in err


@pytest.mark.parametrize("namespaces", [("team",), ()], ids=["listed", "not listed"])
def test_a_job_without_a_namespace_is_in_that_of_the_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], namespaces: tuple[str, ...]
) -> None:
    job = a_job("a")
    del job["metadata"]["namespace"]
    code, out, err = decided(tmp_path, capsys, job, *namespaces)
    assert (code, err) == (0, "")
    (verdict,) = json.loads(out)["verdicts"]
    assert verdict["job"] == "team/a"
