"""The files that a rank writes of a checkpoint, and the one it links."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drumline_contract.config import Schedule
from drumline_contract.layout import Layout
from drumline_trainer.checkpoint import folder_files
from drumline_trainer.checkpoint.background_save import SaveCanceledError
from drumline_trainer.checkpoint.checkpointer import StagingBuffer
from drumline_trainer.checkpoint.commit import Committed, commit
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import Manifest
from drumline_trainer.checkpoint.rank_report import WriteFailed, decode_report
from drumline_trainer.checkpoint.rank_writer import RankWriter, slices_to_write
from drumline_trainer.checkpoint.shard_file import verify_file
from drumline_trainer.parallelism.pipeline_parallel.tied import tied_copies
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from tests.gloo.stored import whole_tensors

FILE, UNCHANGED = "rank-00000-of-00001.safetensors", "rank-00000-of-00001.still.safetensors"


def whole(name: str, tensor: torch.Tensor) -> TensorSlice:
    box = Box(offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape))
    return TensorSlice(name=name, shape=box.shape, box=box, tensor=tensor)


class Run:
    """One rank with a frozen tensor and one that changes with every step."""

    def __init__(self, path: Path) -> None:
        self.folder = CheckpointFolder(path=path, owner="job", membership=(1, 0))
        self.folder.claim()
        self.writer = RankWriter(rank=0, world_size=1)
        self.frozen, self.trained = torch.rand(40_000), torch.rand(3, 4)

    def save(self, step: int) -> Path:
        """Commit it; its folder."""
        self.trained += 1.0
        slices = slices_to_write([whole("frozen", self.frozen), whole("trained", self.trained)])
        files = self.folder.begin(step)
        report = self.writer.write(files, slices)
        outcome = commit(self.folder, files=files, step=step, trainer={}, reports=[report])
        assert isinstance(outcome, Committed), outcome
        return self.folder.step_folder(step)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "checkpoints")


def assert_holds(folder: Path, run: Run) -> None:
    """The checkpoint verifies and holds what the run has now."""
    manifest = Manifest.parse((folder / "manifest.json").read_bytes())
    stored: dict[str, torch.Tensor] = {}
    for name, record in manifest.files.items():
        verify_file(folder / name, record)
        stored |= load_file(folder / name)
    assert stored.keys() == manifest.tensors.keys() == {"frozen", "trained"}
    assert torch.equal(stored["frozen"], run.frozen)
    assert torch.equal(stored["trained"], run.trained)


def test_an_unchanged_tensor_is_written_twice_and_then_linked(run: Run) -> None:
    first, second, third, fourth = (run.save(step) for step in range(1, 5))
    assert not (first / UNCHANGED).exists()
    inodes = {(folder / UNCHANGED).stat().st_ino for folder in (second, third, fourth)}
    assert len(inodes) == 1
    assert (fourth / FILE).stat().st_size < 1000 < (fourth / UNCHANGED).stat().st_size
    assert_holds(fourth, run)
    run.folder.prune(keep=1, verified=[4])
    assert run.folder.steps() == [4]
    assert_holds(fourth, run)


def test_a_tensor_that_changes_after_its_first_bytes_is_written(run: Run) -> None:
    run.save(1)
    run.save(2)
    run.frozen[-1] += 1.0
    third = run.save(3)
    assert (third / UNCHANGED).stat().st_nlink == 1
    assert_holds(third, run)


def test_a_tensor_that_begins_to_change_moves_to_the_other_file(run: Run) -> None:
    run.save(1)
    run.save(2)
    run.frozen[0] += 1.0
    third = run.save(3)
    assert not (third / UNCHANGED).exists()
    assert_holds(third, run)


def test_bytes_that_have_rotted_are_not_linked_on(run: Run) -> None:
    run.save(1)
    second = run.save(2)
    body = bytearray((second / UNCHANGED).read_bytes())
    body[-1] ^= 1
    (second / UNCHANGED).write_bytes(body)
    third = run.save(3)
    assert (third / UNCHANGED).stat().st_nlink == 1
    assert_holds(third, run)


def test_storage_without_links_is_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    run.save(1)
    run.save(2)
    third = run.save(3)
    assert (third / UNCHANGED).stat().st_nlink == 1
    assert_holds(third, run)


@pytest.mark.parametrize("rows", [3, 512])
@pytest.mark.parametrize("replicas", [1, 2])
def test_both_ends_of_a_pipeline_on_one_rank_are_written_once(
    tmp_path: Path, rows: int, replicas: int
) -> None:
    folder = CheckpointFolder(path=tmp_path / "checkpoints", owner="job", membership=(1, 0))
    folder.claim()
    weight = torch.rand(rows, 256)
    layout = Layout(replicate=replicas, pipeline=2, schedule=Schedule.ZBV, stages_per_rank=2)
    reports: list[bytes] = []
    for rank in range(replicas):  # the ranks with both ends
        end = replace(whole("embedding.weight", weight), copies=replicas, copy=rank)
        between = replace(whole("layers.0.w", torch.rand(4)), copies=replicas, copy=rank)
        held = tied_copies([end, between, end], layout=layout, pipeline=0)
        writer = RankWriter(rank=rank, world_size=2 * replicas)
        reports.append(writer.write(folder.begin(1), slices_to_write(held)))
    assert isinstance(
        commit(folder, files=folder.begin(1), step=1, trainer={}, reports=reports), Committed
    )
    stored = whole_tensors(folder.step_folder(1))
    assert torch.equal(torch.from_numpy(stored["embedding.weight"]), weight)


def test_a_copy_does_not_follow_its_source() -> None:
    sources = [
        whole("a", torch.arange(5, dtype=torch.float32)),
        whole("b", torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()),
        whole("c", torch.tensor(7)),
    ]
    copy = StagingBuffer(sources)
    copy.copy()
    before = [source.tensor.clone() for source in sources]
    for source in sources:
        source.tensor.zero_()
    assert all(torch.equal(c.tensor, b) for c, b in zip(copy.slices, before, strict=True))
    copy.copy()
    assert not any(staged.tensor.any() for staged in copy.slices)


def test_a_canceled_save_ends_within_a_chunk(run: Run) -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise SaveCanceledError

    with pytest.raises(SaveCanceledError):
        run.writer.write(run.folder.begin(1), [whole("frozen", run.frozen)], check=check)
    assert run.folder.steps() == []


@pytest.mark.parametrize(
    ("number", "by_storage"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_report_says_whether_the_storage_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, by_storage: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    run = Run(tmp_path)
    monkeypatch.setattr(folder_files, "write_shard_file", fails)
    encoded = run.writer.write(
        run.folder.begin(1), slices_to_write([whole("trained", run.trained)])
    )
    reason = f"rank 0: [Errno {number}] {os.strerror(number)}"
    assert decode_report(encoded) == WriteFailed(reason, by_storage=by_storage)
