"""The sizes of an elastic gang whose ranks choose their layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of
from drumline.controller.workloads.admitted import holds_assignment
from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.sizes import sizes_of
from drumline.lifecycle.model.verdict import Schedulable, Unjudged
from drumline.lifecycle.plan import auto_sizes as module
from drumline.lifecycle.plan.acceptance import judge
from drumline_contract.config import HardwareConfig
from tests.builders import a_job, admitted

H100 = PoolHardware(pool="h100", config=HardwareConfig(gpu="H100"), refuses=False)


def spec(*, batch: int = 64, model: str = "llama-8b", **more: Any) -> dict[str, Any]:
    trainer: dict[str, Any] = {
        "model": model,
        "globalBatchSize": batch,
        "precision": "bf16",
        "sequenceLength": 8192,
        "parallelism": {"mode": "Auto", **more.pop("degrees", {})},
    }
    elastic = {"nodes": 8, "minNodes": 1, "gpusPerNode": 8, "checkpoint": {"claimName": "c"}}
    return {**elastic, "trainer": trainer, **more}


def sizes(hardware: PoolHardware | None = None, **more: Any) -> tuple[int, ...]:
    verdict = judge(a_job(**spec(**more)).spec, hardware)
    assert isinstance(verdict, Schedulable)
    return verdict.sizes


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (1, 2, 4, 8)),
        ({"batch": 8}, (1, 2, 4, 8)),  # more ranks than samples: model parallelism takes them
        ({"batch": 96}, (1, 2, 3, 4, 6, 8)),
        ({"minNodes": 3}, (4, 8)),
        ({"degrees": {"tensor": 8, "pipeline": 2}}, (2, 4, 8)),
        ({"topology": {"slices": [{"level": "rack", "nodes": 4}]}}, (4, 8)),
    ],
)
def test_sizes_without_a_legal_layout_are_left_out(
    more: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert sizes(**more) == expected


def test_sizes_that_cannot_fit_in_memory_are_left_out() -> None:
    assert sizes(model="llama-70b") == (1, 2, 4, 8)
    assert sizes(H100, model="llama-70b") == (2, 4, 8)


def test_where_the_whole_gang_does_not_fit_it_was_warned_and_all_are_legal() -> None:
    verdict = judge(a_job(**spec(model="llama-405b")).spec, H100)
    assert isinstance(verdict, Schedulable)
    assert verdict.shortage is not None
    assert verdict.sizes == (1, 2, 4, 8)


def test_the_work_is_bounded_whatever_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []

    def check(_: object, *, world_size: int) -> None:
        checks.append(world_size)

    monkeypatch.setattr(module, "check_choosable", check)
    assert len(sizes(nodes=10_000, batch=640_000)) == 16
    assert len(checks) == 24


def test_the_scheduler_gets_them_and_the_present_size() -> None:
    job = a_job(**spec())
    verdict = judge(job.spec, None)
    assert gang_of(replace(job, verdict=verdict), priority=0).sizes == (1, 2, 4, 8)
    held = replace(admitted(job, nodes=("a", "b", "c")), verdict=verdict)
    assert sizes_of(held) == (1, 2, 3, 4, 8)


def test_a_gang_keeps_its_size_while_its_verdict_is_not_known() -> None:
    held = replace(admitted(a_job(**spec()), nodes=("a", "b")), verdict=Unjudged())
    assert holds_assignment(held)
    assert sizes_of(held) == (2, 8)
    below = replace(admitted(a_job(**spec(minNodes=3)), nodes=("a", "b")), verdict=Unjudged())
    assert not holds_assignment(below)


def of_folder(**more: Any) -> dict[str, Any]:
    asked = spec(model="FromFolder", **more)
    asked["trainer"]["overrides"] = {"model_from": "/data/mistral"}
    return asked


def test_of_a_model_that_nobody_has_read_sizes_need_neither_heads_nor_layers() -> None:
    verdict = judge(a_job(**of_folder(batch=96)).spec, H100)
    assert verdict == Schedulable(hardware=H100, sizes=(1, 2, 3, 4, 6, 8))
    few = judge(a_job(**of_folder(batch=8)).spec, H100)  # only model parallelism would take more
    assert few == Schedulable(hardware=H100, sizes=(1, 8))
    together = judge(a_job(**of_folder(degrees={"tensor": 8, "pipeline": 2})).spec, H100)
    assert together == Schedulable(hardware=H100, sizes=(2, 4, 8))
