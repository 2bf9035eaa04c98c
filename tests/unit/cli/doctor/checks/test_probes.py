from __future__ import annotations

from drumline_cli.doctor.checks.probes import images, locked_memory, network_policies
from drumline_cli.doctor.facts import NetworkProbe, NodeProbe, Probes, Unread
from drumline_cli.doctor.results import CheckFailed, Passed, Undecided, Warned
from tests.texts import missing

IMAGE = "registry.example.com/trainer:1"


def probed(*nodes: NodeProbe, reached_open: bool = True, reached_closed: bool = False) -> Probes:
    network = NetworkProbe(
        reached_open=reached_open, reached_closed=reached_closed, path="gpu-0 to gpu-1"
    )
    return Probes(image=IMAGE, nodes=nodes, network=network)


def a_node(name: str, *, problem: str = "", locked: int | None = None) -> NodeProbe:
    return NodeProbe(pool="h100", node=name, problem=problem, locked_memory_bytes=locked)


def test_where_nothing_was_tried_nothing_is_said() -> None:
    assert [*images(None), *locked_memory(None), *network_policies(None)] == []


def test_a_node_that_cannot_pull_the_image_is_named_with_what_its_kubelet_says() -> None:
    tried = probed(a_node("gpu-0"), a_node("gpu-1", problem="ErrImagePull: unauthorized"))
    (refused,) = images(tried)
    assert isinstance(refused, CheckFailed)
    assert not missing(refused.message, "gpu-1", "pool h100", IMAGE, "ErrImagePull: unauthorized")
    (well,) = images(probed(a_node("gpu-0"), a_node("gpu-1")))
    assert well == Passed(message=f"{IMAGE} starts on gpu-0, gpu-1")
    (nowhere,) = images(probed())
    assert isinstance(nowhere, Undecided)


def test_the_smallest_limit_of_locked_memory_is_named() -> None:
    tried = probed(a_node("gpu-0"), a_node("gpu-1", locked=64 * 2**20), a_node("b", locked=2**23))
    (limited,) = locked_memory(tried)
    assert isinstance(limited, Warned)
    assert not missing(limited.message, "gpu-1", "8 MiB")
    (well,) = locked_memory(probed(a_node("gpu-0")))
    assert well == Passed(message="no limit on gpu-0")
    assert list(locked_memory(probed(a_node("gpu-0", problem="ErrImagePull: no")))) == []


def test_a_policy_counts_as_enforced_only_where_there_is_a_way_at_all() -> None:
    (well,) = network_policies(probed())
    assert well == Passed(message="enforced (gpu-0 to gpu-1)")
    (open_to_all,) = network_policies(probed(reached_closed=True))
    assert isinstance(open_to_all, Warned)
    (broken,) = network_policies(probed(reached_open=False))
    assert isinstance(broken, CheckFailed)
    unread = Probes(image=IMAGE, nodes=(), network=Unread(reason="no node ran a pod"))
    (unknown,) = network_policies(unread)
    assert isinstance(unknown, Undecided)
    assert unknown.message == "no node ran a pod"
