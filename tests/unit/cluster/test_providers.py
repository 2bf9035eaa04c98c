from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.kind import kind_config
from tools.cluster.model import ClusterError, ClusterSpec, Provider
from tools.cluster.providers import PROVIDERS, choose


def test_a_control_plane_alone_takes_neither_root_nor_docker() -> None:
    assert choose(ClusterSpec(nodes=0)) == (Provider.NATIVE, "nothing it needs is missing")


def test_a_refusal_names_what_every_provider_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ClusterError) as refusal:
        choose(ClusterSpec(nodes=3))
    assert str(refusal.value) == (
        "no cluster of 3 nodes here. not native: real nodes without Docker take root; "
        "not kind: kind takes Docker, and there is no `docker` command "
        "(a cluster of your own: --provider existing; without real nodes: --nodes 0)"
    )


def test_an_existing_cluster_takes_a_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    spec = ClusterSpec(provider=Provider.EXISTING)
    with pytest.raises(ClusterError, match=r"provider existing: no kubeconfig at .*absent"):
        choose(spec)
    (tmp_path / "absent").touch()
    assert choose(spec) == (Provider.EXISTING, "asked for")


@pytest.mark.parametrize("provider", [Provider.EXISTING, Provider.KIND])
def test_fake_nodes_are_not_added_to_clusters_of_others(provider: Provider) -> None:
    missing = PROVIDERS[provider].missing(ClusterSpec(fake_nodes=5))
    assert missing is not None
    assert "fake nodes" in missing


def test_kind_gets_a_worker_a_node_with_its_rack_and_gpus() -> None:
    control_plane, *workers = kind_config(ClusterSpec(nodes=3, gpus_per_node=4))["nodes"]
    assert control_plane == {"role": "control-plane"}
    assert [
        (each["role"], each["labels"]["drumline.dev/rack"], each["labels"]["nvidia.com/gpu.count"])
        for each in workers
    ] == [("worker", "rack-0", "4"), ("worker", "rack-0", "4"), ("worker", "rack-1", "4")]
