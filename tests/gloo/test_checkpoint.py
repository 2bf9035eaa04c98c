"""Only verified checkpoints are used, only the newest membership commits."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.checkpoint.errors import CheckpointError, CorruptCheckpointError, SaveError
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    digest_line,
)
from drumline_trainer.recovery.saved_state import check_state
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU, opened, restore_once, save_steps, train_rank, training_state
from tests.gloo.scale import DAMAGES

pytestmark = pytest.mark.extended(keep=5)


def restore_mutated(
    placement: Placement, pipe: Connection, config: TrainerConfig, seed: int
) -> None:
    """Rank 0 damages one file, all try to restore, rank 0 mends it; send what went unseen."""
    slices = training_state(placement, config)
    checkpoints = opened(placement)
    [step] = checkpoints.storage.steps()
    assert placement.checkpoint_folder is not None
    damages = damaged_files(placement.checkpoint_folder / f"step-{step:08d}", seed=seed)
    unseen = 0
    for _ in range(DAMAGES):
        if placement.rank == 0:
            file, intact, damaged = next(damages)
            file.write_bytes(damaged)
        dist.barrier()
        try:
            checkpoints.restore(slices, placement=placement)
            unseen += 1
        except CorruptCheckpointError:
            pass
        dist.barrier()
        if placement.rank == 0:
            file.write_bytes(intact)
    for local in slices:
        local.tensor.fill_(float("nan"))  # what damaged checkpoints have left there
    restored = checkpoints.restore(slices, placement=placement)
    assert not any(local.tensor.isnan().any() for local in slices)
    pipe.send((unseen, restored and restored.step))
    dist.destroy_process_group()


def damaged_files(folder: Path, *, seed: int) -> Iterator[tuple[Path, bytes, bytes]]:
    """Without end: (a file of the checkpoint, its bytes, these with one bit flipped or cut off)."""
    files = sorted(folder.iterdir())
    choice = random.Random(seed)
    while True:
        file = choice.choice(files)
        intact = file.read_bytes()
        place = choice.randrange(len(intact))
        if choice.random() < 0.7:
            flipped = intact[place] ^ 1 << choice.randrange(8)
            yield file, intact, intact[:place] + bytes([flipped]) + intact[place + 1 :]
        else:
            yield file, intact, intact[:place]


def save_with_full_disk(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Rank 1 may not write a file of more than 100 bytes."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    if placement.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        checkpoints.save(step=1, slices=slices, trainer={})
    except SaveError as error:
        pipe.send(str(error))
    dist.destroy_process_group()


def save_and_stay(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Save step 1, and train on until somebody kills this rank."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    for local in slices:
        local.tensor.fill_(1.0)
    pipe.send(checkpoints.save(step=1, slices=slices, trainer={"cursor": 4}).step)
    signal.pause()


def save_after_replacement(
    placement: Placement, pipe: Connection, config: TrainerConfig, newer: Placement
) -> None:
    """A newer membership claims the folder while this one trains."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    opened(newer)
    try:
        checkpoints.save(step=5, slices=slices, trainer={})
    except CheckpointError as error:
        pipe.send(type(error).__name__)
    dist.destroy_process_group()


def save_and_spoil(
    placement: Placement, pipe: Connection, config: TrainerConfig, value: float, cursor: Any
) -> None:
    """Save step 1, and a step 2 that verifies and holds `value` in one weight, or this cursor."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    for local in slices:
        local.tensor.fill_(1.0)
    checkpoints.save(step=1, slices=slices, trainer={"cursor": 4})
    if placement.rank == 0:
        slices[0].tensor.view(-1)[0] = value
    checkpoints.save(step=2, slices=slices, trainer={"cursor": cursor})
    pipe.send(None)
    dist.destroy_process_group()


def restore_checked(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Restore as a run does; send the step."""
    slices = training_state(placement, config)
    restored = opened(placement).restore(
        slices,
        placement=placement,
        check=lambda trainer: check_state(trainer, config=config),
    )
    pipe.send(restored and restored.step)
    dist.destroy_process_group()


def count_progress(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Save, read back and restore; send how often each says that it moves."""
    calls: list[str] = []
    slices = training_state(placement, config, seed=0)
    checkpoints = Checkpointer.open(
        placement, keep=3, device=CPU, progress=lambda: calls.append("")
    )
    assert checkpoints is not None
    counts: list[int] = []
    saved = checkpoints.save(step=1, slices=slices, trainer={"cursor": 4})
    counts.append(len(calls))
    checkpoints.read_back(saved)
    counts.append(len(calls) - sum(counts))
    checkpoints.restore(slices, placement=placement)
    counts.append(len(calls) - sum(counts))
    pipe.send((len(slices), counts))
    dist.destroy_process_group()


def steps_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.glob("step-*"))


@pytest.fixture
def config(tmp_path: Path) -> TrainerConfig:
    return small(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.mark.parametrize(
    ("saved_by", "world_size"),
    [
        pytest.param({"data_parallel": "fsdp"}, 1, id="fsdp, restored by one rank"),
        pytest.param({"tensor": 2}, 2, id="tensor"),
        pytest.param({"pipeline": 2}, 2, id="pipeline"),
    ],
)
def test_every_flipped_bit_and_every_cut_is_seen(
    gangs: GangStarter, tmp_path: Path, folder: Path, saved_by: dict[str, Any], world_size: int
) -> None:
    model = {"kv_heads": 2}
    config = small(tmp_path, model=model, parallelism=saved_by)
    gangs.run(save_steps, config, [1], 3, world_size=2, checkpoint_folder=folder)
    if world_size == 1:
        config = small(tmp_path, model=model)
    results = gangs.run(
        restore_mutated, config, 11, world_size=world_size, checkpoint_folder=folder
    )
    print(f"{DAMAGES} damaged checkpoints, saved by {saved_by}: {results[0][0]} of them restored")
    assert results == [(0, 1)] * world_size


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_restores_what_three_ranks_saved(
    gangs: GangStarter, config: TrainerConfig, folder: Path, world_size: int
) -> None:
    gangs.run(save_steps, config, [1, 2], 3, world_size=3, checkpoint_folder=folder)
    results = gangs.run(restore_once, config, world_size=world_size, checkpoint_folder=folder)
    assert {step for step, _ in results} == {2}
    assert set.union(*(values for _, values in results)) == {2.0}


@pytest.mark.parametrize(
    "lost", ["manifest.sha256", "manifest.json", "rank-00001-of-00002.safetensors"]
)
def test_falls_back_to_the_newest_that_verifies_and_leaves_the_other(
    gangs: GangStarter, config: TrainerConfig, folder: Path, lost: str
) -> None:
    gangs.run(save_steps, config, [1, 2, 3], 3, world_size=2, checkpoint_folder=folder)
    (folder / "step-00000003" / lost).unlink()
    results = gangs.run(restore_once, config, world_size=2, checkpoint_folder=folder)
    assert results == [(2, {2.0})] * 2
    assert steps_in(folder) == ["step-00000001", "step-00000002", "step-00000003"]


def test_nothing_that_verifies_is_an_error_and_not_a_fresh_start(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    gangs.run(save_steps, config, [1, 2], 3, world_size=2, checkpoint_folder=folder)
    for step in (1, 2):
        (folder / f"step-{step:08d}" / "manifest.sha256").unlink()
    before = sorted(folder.rglob("*"))
    with gangs.gang(train_rank, config, None, world_size=2, checkpoint_folder=folder) as gang:
        assert all("step 2, step 1" in lines[0] for lines in gang.results())
        assert gang.exit_codes() == [ExitCode.CORRUPT_CHECKPOINT] * 2
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("value", "cursor"),
    [
        pytest.param(float("nan"), 8, id="a weight is no number"),
        pytest.param(1.0, 10**300, id="a cursor that counts no samples"),
    ],
)
def test_what_verifies_and_cannot_be_trained_from_is_skipped(
    gangs: GangStarter, config: TrainerConfig, folder: Path, value: float, cursor: Any
) -> None:
    asked = {"world_size": 1, "checkpoint_folder": folder}
    gangs.run(save_and_spoil, config, value, cursor, **asked)
    assert gangs.run(restore_checked, config, **asked) == [1]


@pytest.mark.parametrize("damage", ["a tensor is gone", "the cursor is no number", "a file"])
def test_a_manifest_that_was_digested_again_is_skipped(
    gangs: GangStarter, config: TrainerConfig, folder: Path, damage: str
) -> None:
    gangs.run(save_steps, config, [1, 2], 3, world_size=1, checkpoint_folder=folder)
    newest = folder / "step-00000002"
    raw = json.loads((newest / MANIFEST_FILE).read_bytes())
    if damage == "a tensor is gone":
        raw["tensors"].popitem()
    raw["trainer"]["cursor"] = True if damage == "the cursor is no number" else 2
    body = json.dumps(raw).encode()
    (newest / MANIFEST_FILE).write_bytes(body)
    (newest / MANIFEST_DIGEST_FILE).write_bytes(digest_line(body))
    if damage == "a file":
        shutil.rmtree(newest)
        newest.write_bytes(b"")
    results = gangs.run(restore_checked, config, world_size=1, checkpoint_folder=folder)
    assert results == [1]


def test_every_long_read_and_write_says_that_it_moves(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    for tensors, (saving, reading, restoring) in gangs.run(
        count_progress, config, world_size=2, checkpoint_folder=folder
    ):
        assert saving > tensors  # each in a chunk of its own, after the header
        assert reading >= 1
        assert restoring > tensors


@pytest.mark.parametrize(
    ("acknowledged", "digest"),
    [
        pytest.param(2, "", id="a newer one wins"),
        pytest.param(2, "0" * 64, id="a newer one need not have the digest"),
        pytest.param(1, "0" * 64, id="retention removed the acknowledged one"),
        pytest.param(3, "", id="it is the newest"),
    ],
)
def test_the_newest_wins_over_the_acknowledged_step(
    gangs: GangStarter, config: TrainerConfig, folder: Path, acknowledged: int, digest: str
) -> None:
    gangs.run(save_steps, config, [1, 2, 3], 2, world_size=2, checkpoint_folder=folder)
    assert steps_in(folder) == ["step-00000002", "step-00000003"]
    results = gangs.run(
        restore_once,
        config,
        world_size=2,
        checkpoint_folder=folder,
        acknowledged_step=acknowledged,
        acknowledged_digest=digest,
    )
    assert results == [(3, {3.0})] * 2


def test_the_acknowledged_step_is_restored_by_its_digest_and_by_no_other(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked = {"world_size": 2, "checkpoint_folder": folder}
    [digest, _] = gangs.run(save_steps, config, [1, 2], 3, **asked)
    right = {"acknowledged_step": 2, "acknowledged_digest": digest, **asked}
    assert gangs.run(restore_once, config, **right) == [(2, {2.0})] * 2
    wrong = {"acknowledged_step": 2, "acknowledged_digest": "0" * 64, **asked}
    errors = gangs.run(restore_once, config, **wrong)
    assert all(e.startswith("CorruptCheckpointError") for e in errors)
    assert all("acknowledged step 2 " in e and "found: step 2, step 1" in e for e in errors)


def test_nothing_older_than_the_acknowledged_step_is_used(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked = {"world_size": 2, "checkpoint_folder": folder}
    gangs.run(save_steps, config, [1, 2, 3], 3, **asked)
    (folder / "step-00000003" / "manifest.sha256").unlink()
    for acknowledged in (3, 4):
        errors = gangs.run(restore_once, config, acknowledged_step=acknowledged, **asked)
        assert all(e.startswith("CorruptCheckpointError") for e in errors)
        assert all(f"acknowledged step {acknowledged} " in e for e in errors)


def test_an_empty_folder_is_no_fresh_start_where_a_step_was_acknowledged(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked = {"world_size": 2, "checkpoint_folder": folder}
    assert gangs.run(restore_once, config, **asked)[0][0] is None
    errors = gangs.run(restore_once, config, acknowledged_step=5, **asked)
    assert all("acknowledged step 5 " in e and "found: none" in e for e in errors)


def test_a_step_was_acknowledged_but_there_is_no_folder(
    gangs: GangStarter, config: TrainerConfig
) -> None:
    with gangs.gang(train_rank, config, None, world_size=2, acknowledged_step=5) as gang:
        assert all("step 5 was acknowledged" in lines[0] for lines in gang.results())
        assert gang.exit_codes() == [ExitCode.CORRUPT_CHECKPOINT] * 2


def test_another_model_is_a_configuration_error(
    gangs: GangStarter, config: TrainerConfig, folder: Path, tmp_path: Path
) -> None:
    gangs.run(save_steps, config, [1], 3, world_size=1, checkpoint_folder=folder)
    other = small(tmp_path, model={"ffn_size": 40})
    results = gangs.run(restore_once, other, world_size=2, checkpoint_folder=folder)
    assert all(r.startswith("ConfigError: model: the checkpoint of step 1") for r in results)


def test_a_rank_that_cannot_write_fails_all_and_commits_nothing(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    reasons = gangs.run(save_with_full_disk, config, world_size=2, checkpoint_folder=folder)
    assert reasons[0] == reasons[1]
    assert "rank 1" in reasons[0]
    assert "File too large" in reasons[0]
    assert steps_in(folder) == []


@pytest.mark.parametrize(
    ("newer", "kind"),
    [
        (("job", 3, 0), "StaleMembershipError"),
        (("job", 2, 2), "StaleMembershipError"),
        (("another job", 1, 0), "FolderTakenError"),
    ],
)
def test_a_replaced_membership_commits_nothing(
    gangs: GangStarter,
    config: TrainerConfig,
    folder: Path,
    newer: tuple[str, int, int],
    kind: str,
) -> None:
    owner, generation, attempt = newer
    successor = Placement(
        rank=0,
        world_size=1,
        owner=owner,
        generation=generation,
        attempt=attempt,
        checkpoint_folder=folder,
    )
    kinds = gangs.run(
        save_after_replacement,
        config,
        successor,
        world_size=2,
        owner="job",
        generation=2,
        attempt=1,
        checkpoint_folder=folder,
    )
    assert kinds == [kind] * 2
    assert steps_in(folder) == []


def test_a_second_launch_without_an_operator_fences_the_first(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    relaunched = Placement(rank=0, world_size=2, checkpoint_folder=folder)
    kinds = gangs.run(
        save_after_replacement, config, relaunched, world_size=2, checkpoint_folder=folder
    )
    assert kinds == ["FolderTakenError"] * 2
    assert steps_in(folder) == []


def test_a_second_run_does_not_take_the_folder_of_one_that_trains(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked = {"world_size": 2, "checkpoint_folder": folder}
    with gangs.gang(save_and_stay, config, **asked) as first:
        assert first.results() == [1, 1]
        results = gangs.run(restore_once, config, **asked)
        assert [kind.partition(" on ")[0].rstrip("0123456789abcdef") for kind in results] == [
            "FolderInUseError: CheckpointFolderInUse: held by run "
        ] * 2
        first.kill()
    assert gangs.run(restore_once, config, **asked) == [(1, {1.0})] * 2


def test_a_stale_membership_cannot_even_open_the_folder(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked = {"world_size": 2, "checkpoint_folder": folder}
    gangs.run(save_steps, config, [1], 3, generation=4, **asked)
    results = gangs.run(restore_once, config, generation=3, attempt=9, **asked)
    assert all(r.startswith("StaleMembershipError") for r in results)


def test_another_job_continues_the_checkpoints_of_the_first_only_if_it_names_that_job(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    asked: dict[str, Any] = {"world_size": 2, "checkpoint_folder": folder}
    first: dict[str, Any] = {"owner": "uid-1", "job": "demo/first", "generation": 3}
    second: dict[str, Any] = {"owner": "uid-2", "job": "demo/second", "generation": 1}
    gangs.run(save_steps, config, [1], 3, **first, **asked)
    refused = gangs.run(restore_once, config, **second, **asked)
    assert all("CheckpointFolderInUse: held by demo/first" in each for each in refused)
    assert gangs.run(restore_once, config, "first", **second, **asked) == [(1, {1.0})] * 2


def test_keeps_the_newest_verified(gangs: GangStarter, config: TrainerConfig, folder: Path) -> None:
    gangs.run(save_steps, config, [1, 2, 3, 4], 2, world_size=2, checkpoint_folder=folder)
    assert steps_in(folder) == ["step-00000003", "step-00000004"]


def test_a_commit_replaces_a_damaged_checkpoint_of_its_step(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    gangs.run(save_steps, config, [1, 2], 3, world_size=2, checkpoint_folder=folder)
    (folder / "step-00000002" / "manifest.json").write_bytes(b"{}")
    gangs.run(save_steps, config, [2], 3, world_size=1, checkpoint_folder=folder)
    results = gangs.run(restore_once, config, world_size=2, checkpoint_folder=folder)
    assert results == [(2, {2.0})] * 2
    assert steps_in(folder) == ["step-00000001", "step-00000002"]


def test_a_damaged_owner_record_stops_every_rank(
    gangs: GangStarter, config: TrainerConfig, folder: Path
) -> None:
    gangs.run(save_steps, config, [1], 3, world_size=2, checkpoint_folder=folder)
    (folder / "membership.json").write_bytes(b"{")
    results = gangs.run(restore_once, config, world_size=2, checkpoint_folder=folder)
    assert all(r.startswith("CorruptCheckpointError") for r in results)
