from __future__ import annotations

import pytest

from drumline_contract.layout import Layout
from drumline_trainer.preflight import (
    RankReport,
    environment_facts,
    first_difference,
    first_group_mismatch,
    first_problem,
    groups_of,
)
from tests.texts import missing

SAMENESS = "set it the same on all ranks"


def said(rank: int, *, of: int = 4, process: str = "a pid 1", **facts: str) -> RankReport:
    return RankReport(rank=rank, world_size=of, process=process, facts=facts)


def test_ranks_that_are_alike_agree() -> None:
    assert first_difference([said(rank, torch="2.15") for rank in (2, 0, 1, 3)]) is None


@pytest.mark.parametrize(
    ("reports", "sentence"),
    [
        (
            [said(3, NCCL_ALGO="Ring"), said(0), said(1), said(2)],
            f"rank 3 has NCCL_ALGO=Ring and rank 0 has NCCL_ALGO unset; {SAMENESS}",
        ),
        (  # the odd one is named first, even where it is rank 0
            [said(0), said(1, torch="2.15"), said(2, torch="2.15")],
            "rank 0 has torch unset and rank 1 has torch=2.15; set it the same on all ranks",
        ),
        (
            [said(1, torch="2.11"), said(0, torch="2.15")],
            "rank 1 has torch=2.11 and rank 0 has torch=2.15; set it the same on all ranks",
        ),
        (
            [said(0, of=4), said(1, of=2)],
            "rank 1 has world size=2 and rank 0 has world size=4; set it the same on all ranks",
        ),
        (
            [said(1, process="a pid 1"), said(1, process="b pid 2")],
            "a pid 1 and b pid 2 both say that they are rank 1; give every process its own",
        ),
    ],
)
def test_the_sentence_names_both_ranks_and_both_values(
    reports: list[RankReport], sentence: str
) -> None:
    assert first_difference(reports) == sentence


def on_gpu(rank: int, gpu: str) -> RankReport:
    return RankReport(rank=rank, world_size=3, process="a pid 1", facts={}, gpu=gpu)


def test_no_two_ranks_compute_on_one_gpu() -> None:
    assert first_problem([on_gpu(0, "GPU-a"), on_gpu(1, "GPU-b"), on_gpu(2, "GPU-c")]) is None
    assert first_problem([on_gpu(rank, "") for rank in range(3)]) is None
    problem = first_problem([on_gpu(2, "GPU-a"), on_gpu(1, "GPU-b"), on_gpu(0, "GPU-a")])
    assert problem is not None
    assert not missing(problem, "rank 0", "rank 2", "GPU", "GPU-a")


def with_groups(rank: int, **groups: str) -> RankReport:
    return RankReport(rank=rank, world_size=4, process="a pid 1", facts={}, groups=groups)


def test_the_members_of_a_group_must_agree_on_it() -> None:
    here = with_groups
    right = [here(0, tp="0, 1"), here(1, tp="0, 1"), here(2, dp="2, 3"), here(3, dp="2, 3")]
    assert first_group_mismatch(right) is None
    wrong = [here(0, tp="0, 1"), here(1, tp="1, 0")]
    assert not missing(first_group_mismatch(wrong), "rank 0", "ranks 0", "1", "rank 1")
    assert not missing(
        first_group_mismatch([here(0, tp="0, 1"), here(1)]), "rank 0", "ranks 0", "1", "rank 1"
    )
    assert "rank 2 has the ranks 0, 1" in first_group_mismatch([*right[:2], here(2, tp="0, 1")])
    assert not missing(first_group_mismatch([here(0, tp="0, 9")]), "rank 9")


def test_groups_are_those_of_some_ranks_but_not_of_all() -> None:
    layout = Layout(shard=2, tensor=2, pipeline=2)
    assert groups_of(layout, 5)["tp"] == [4, 5]
    assert groups_of(layout, 5)["pp"] == [1, 5]
    assert groups_of(Layout(shard=4), 1) == {}


def test_facts_are_settings_that_ranks_must_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth0")  # of this host
    facts = environment_facts({}, Layout(shard=2), backend="gloo")
    assert facts["NCCL_ALGO"] == "Ring"
    assert facts["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in facts
    assert facts.keys() >= {"torch", "cuda", "backend", "configuration"}
    assert (facts["layout"], facts["backend"]) == ("FSDP2", "gloo")
    other = environment_facts({"seed": 1}, Layout(shard=2), backend="gloo")
    differing = {name for name in facts if facts[name] != other[name]}
    assert differing == {"configuration"}


def test_a_setting_of_what_nccl_is_not_used_for_does_not_hide_its_version() -> None:
    assert "nccl" not in environment_facts({}, Layout(), backend="gloo")
    assert "." in environment_facts({}, Layout(), backend="nccl")["nccl"]


def test_a_folders_model_is_compared_by_the_folders_name() -> None:
    there = {"model_from": "/data/mistral", "model": {"layers": 2}}
    reports = [
        said(rank, of=2, **environment_facts(there | {"model": model}, Layout(), backend="gloo"))
        for rank, model in enumerate([{"layers": 2}, {"layers": 3}])
    ]
    sentence = first_problem(reports)
    assert sentence is not None
    assert not missing(sentence, "rank 1", "/data/mistral")
