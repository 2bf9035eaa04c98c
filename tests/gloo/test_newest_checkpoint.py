"""Ranks of an own script resume from one checkpoint, whatever listing a file server shows them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_client.adapters.checkpoint_folder import agreed_newest
from drumline_client.adapters.huggingface import newest_checkpoint
from tests.gloo.gang import GangStarter


def checkpoint(folder: Path, step: int, *, state: str = "{}") -> Path:
    """Write the last file of a checkpoint, as the Trainer of transformers does."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(state)
    return path


def find(placement: Placement, pipe: Connection, folders: list[Path], wait: float) -> None:
    """Each rank sees a folder of its own, as nodes with a stale listing do."""
    store = dist.TCPStore(placement.store_host, placement.store_port)
    dist.init_process_group(
        "gloo", store=store, rank=placement.rank, world_size=placement.world_size
    )
    folder = folders[placement.rank]
    try:
        newest = agreed_newest(folder, r"checkpoint-(\d+)", is_whole=Path.is_dir, wait_seconds=wait)
        pipe.send(None if newest is None else (newest[0], newest[1].name))
    except FileNotFoundError as error:
        pipe.send(str(error))
    dist.destroy_process_group()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Rank 0 sees steps 1 and 2, and rank 1 step 1 alone."""
    of_ranks = [tmp_path / "rank-0", tmp_path / "rank-1"]
    for folder in of_ranks:
        checkpoint(folder, 1)
    checkpoint(of_ranks[0], 2)
    return of_ranks


def test_a_rank_that_does_not_see_the_checkpoint_of_rank_0_does_not_train(
    gangs: GangStarter, folders: list[Path]
) -> None:
    first, second = gangs.run(find, folders, 0.0, world_size=2)
    assert first == (2, "checkpoint-2")
    assert "rank 0 resumes from it, and rank 1 does not see it" in second


def test_a_checkpoint_that_rank_0_does_not_see_is_used_by_no_rank(
    gangs: GangStarter, folders: list[Path]
) -> None:
    first, second = gangs.run(find, folders[::-1], 0.0, world_size=2)
    assert first == second == (1, "checkpoint-1")


def test_no_rank_resumes_where_rank_0_has_no_checkpoint(
    gangs: GangStarter, folders: list[Path], tmp_path: Path
) -> None:
    both = [tmp_path / "missing", folders[1]]
    assert gangs.run(find, both, 0.0, world_size=2) == [None, None]


def cut_state(path: Path) -> None:
    (path / "trainer_state.json").write_text('{"global_step": 2, "log_h')


def cut_random_state(path: Path) -> None:
    with zipfile.ZipFile(path / "rng_state_0.pth", "w") as file:
        file.writestr("data.pkl", "0")
    (path / "rng_state_1.pth").write_bytes((path / "rng_state_0.pth").read_bytes()[:50])


@pytest.mark.parametrize("cut", [cut_state, cut_random_state])
def test_a_file_that_a_full_disk_cut_is_no_checkpoint(
    tmp_path: Path, cut: Callable[[Path], None]
) -> None:
    older = checkpoint(tmp_path, 1)
    cut(checkpoint(tmp_path, 2))
    assert newest_checkpoint(str(tmp_path)) == str(older)
