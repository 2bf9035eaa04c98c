"""A start that finds kernels of its own, and one that finds somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.compiled_kernels import kept_kernels
from drumline_trainer.compiled_kernels.kept_kernels import KeptKernels
from tests.texts import missing

KERNEL = b"kernel"


@dataclass
class Pod:
    """A start of a job on a machine where nothing lies."""

    folder: Path
    claim: Path | None
    token: bytes = b"job"
    uid: str = "uid"
    above: Path | None = None
    environ: dict[str, str] = field(default_factory=dict[str, str])
    lines: list[str] = field(default_factory=list[str])

    def open(self, *, rank: int = 0, pod: int = 1, ranks: int = 1) -> KeptKernels:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "token").write_bytes(self.token)
        self.environ |= {"DRUMLINE_TOKEN_FILE": str(self.folder / "token")}
        config = TrainerConfig.from_dict({"compile": "blocks"})
        return KeptKernels.open(
            config,
            Layout.of(config.parallelism, world_size=ranks),
            placement=Placement(
                rank=rank,
                world_size=ranks,
                local_rank=rank % pod,
                local_world_size=pod,
                owner=self.uid,
                checkpoint_folder=self.claim,
            ),
            device=torch.device("cpu"),
            report=self.lines.append,
            above=self.above or self.folder,
            environ=self.environ,
        )

    @property
    def kernels(self) -> Path:
        """Where torch compiles."""
        return Path(self.environ["TORCHINDUCTOR_CACHE_DIR"])

    def compiles(self, graphs: int = 2) -> None:
        """As torch does: a file in its folder, and a graph more that was not there."""
        (self.kernels / "k.so").write_bytes(KERNEL)
        counters["inductor"]["fxgraph_cache_miss"] += graphs

    def has_kernels(self) -> bool:
        return (self.kernels / "k.so").exists()


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """With what a first start has compiled."""
    first = Pod(tmp_path / "first", tmp_path / "claim")
    kernels = first.open()
    first.compiles()
    kernels.step_done()
    kernels.finish()
    return tmp_path / "claim"


def kept_file(claim: Path) -> Path:
    (file,) = claim.glob("kernels/*/*.kernels")
    return file


def test_a_new_pod_of_the_job_finds_what_the_first_one_compiled(
    claim: Path, tmp_path: Path
) -> None:
    second = Pod(tmp_path / "second", claim)
    second.open()
    assert (second.kernels / "k.so").read_bytes() == KERNEL
    assert second.kernels.is_relative_to(tmp_path / "second")
    assert second.environ["TRITON_CACHE_DIR"] == str(second.kernels / "triton")
    assert second.lines == [f"compiled kernels: read from {kept_file(claim)}, 0.0 MB"]


def test_the_first_start_says_what_it_did(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", tmp_path / "claim")
    kernels = pod.open()
    pod.compiles(3)
    kernels.step_done()
    kernels.finish()
    path = kept_file(tmp_path / "claim")
    none, compiled, kept = pod.lines
    assert not missing(none, "none", str(path))
    assert not missing(compiled, "3 graphs")
    assert not missing(kept, str(path), "0.0 MB")


def test_nothing_is_written_where_nothing_was_compiled(claim: Path, tmp_path: Path) -> None:
    before = kept_file(claim).stat().st_ino
    second = Pod(tmp_path / "second", claim)
    kernels = second.open()
    for _ in range(3):
        kernels.step_done()
    kernels.finish()
    assert kept_file(claim).stat().st_ino == before
    assert len(second.lines) == 1


def test_what_a_later_step_compiles_is_kept_as_well(claim: Path, tmp_path: Path) -> None:
    second = Pod(tmp_path / "second", claim)
    kernels = second.open()
    (second.kernels / "later.so").write_bytes(b"")
    second.compiles(1)
    kernels.step_done()
    kernels.finish()
    third = Pod(tmp_path / "third", claim)
    third.open()
    assert sorted(entry.name for entry in third.kernels.iterdir()) == ["k.so", "later.so"]


def flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "not a file of compiled kernels": lambda file: file.write_bytes(b"not ours"),
    "signature is not this job's": lambda file: file.write_bytes(flipped(file.read_bytes())),
    "larger than": lambda file: file.write_bytes(bytes(1000)),
    "Is a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_file_that_is_not_the_jobs_is_refused_and_compiled_again(
    reason: str,
    claim: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_kernels, "MOST_BYTES", 500)
    DAMAGES[reason](kept_file(claim))
    second = Pod(tmp_path / "second", claim)
    kernels = second.open()
    assert not second.has_kernels()
    assert second.lines == ["compiled kernels: compiled anew"]
    assert reason in caplog.text
    second.compiles()
    kernels.step_done()
    kernels.finish()
    third = Pod(tmp_path / "third", claim)
    third.open()
    assert third.has_kernels() is (reason != "Is a directory")


def test_another_jobs_kernels_on_the_same_claim_are_refused(
    claim: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Pod(tmp_path / "other", claim, token=b"other", uid="other")
    other.open()
    assert not other.has_kernels()
    assert "signature is not this job's" in caplog.text


def test_ranks_that_start_again_in_place_find_what_they_compiled(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", None)
    pod.open()
    pod.compiles()
    pod.open()
    assert pod.has_kernels()
    assert pod.lines == [f"compiled kernels: those in {pod.kernels}"]


def test_of_several_pods_the_first_one_keeps_them(tmp_path: Path) -> None:
    for rank in (3, 2, 1, 0):
        pod = Pod(tmp_path / f"pod-{rank // 2}", tmp_path / "claim")
        kernels = pod.open(rank=rank, pod=2, ranks=4)
        pod.compiles()
        kernels.step_done()
        kernels.finish()
        assert (tmp_path / "claim").exists() is (rank == 0)


def test_without_its_token_a_job_trains_and_says_that_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pod = Pod(tmp_path / "pod", tmp_path / "claim", token=b"")
    kernels = pod.open()
    pod.compiles()
    kernels.step_done()
    kernels.finish()
    assert "not kept for the next start: the job's token is empty" in caplog.text
    assert not (tmp_path / "claim").exists()


def test_a_claim_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "claim").touch()
    pod = Pod(tmp_path / "pod", tmp_path / "claim")
    kernels = pod.open()
    pod.compiles()
    kernels.step_done()
    kernels.finish()
    assert "not kept in" in pod.lines[-1]
    assert "File exists" in pod.lines[-1]


def test_a_named_folder_that_is_not_there_is_made(claim: Path, tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", claim, above=tmp_path / "fast" / "disk")
    pod.open()
    assert pod.kernels.parent == tmp_path / "fast" / "disk"
    assert pod.has_kernels()


def test_a_named_folder_that_cannot_be_made_ends_nothing(
    claim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    pod = Pod(tmp_path / "pod", claim, above=tmp_path / "file" / "disk")
    kernels = pod.open()
    pod.compiles()
    kernels.step_done()
    kernels.finish()
    assert pod.kernels.parent == tmp_path
    assert pod.lines[-1].startswith("compiled kernels: kept in ")
