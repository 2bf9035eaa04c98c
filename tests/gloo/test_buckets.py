"""Training whose checkpoints lie in a bucket is training whose checkpoints lie in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.buckets.path import any_path, write_file
from drumline_trainer.checkpoint.bucket.index import INDEX_FILE, Index
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import restore_once, save_steps, train_rank, train_until
from tests.gloo.stored import same_bits, trainer_state, whole_tensors
from tests.gloo.tuned import tuned, write_conversations, write_tiny_llama
from tests.object_store import BUCKET, ObjectStore

pytestmark = pytest.mark.extended(keep=1)


def with_keys(
    placement: Placement,
    pipe: Connection,
    environment: Mapping[str, str],
    job: Callable[..., None],
    *arguments: Any,
) -> None:
    """Another job, in a process that finds the store."""
    os.environ.update(environment)
    job(placement, pipe, *arguments)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path.parent.name}/{tmp_path.name}"


@pytest.fixture
def asked(prefix: str) -> dict[str, str]:
    return {"checkpoint_bucket": f"s3://{BUCKET}/{prefix}"}


def places(store: ObjectStore, prefix: str) -> dict[int, Path]:
    """The objects of each committed step are files of a folder."""
    top = store.folder / BUCKET / prefix
    index = Index.parse((top / INDEX_FILE).read_bytes(), where=prefix)
    return {step: top / place for step, place in index.places.items()}


def test_killed_and_resumed_in_a_bucket_equals_undisturbed_in_a_folder_bitwise(
    gangs: GangStarter,
    object_store: ObjectStore,
    tmp_path: Path,
    prefix: str,
    asked: dict[str, str],
) -> None:
    config = small(tmp_path)
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=tmp_path / "whole")
    keys = object_store.environment()
    stop = (config, 9, Phase.BACKWARD)
    with gangs.gang(with_keys, keys, train_until, *stop, world_size=2, **asked) as gang:
        assert gang.results() == ["reached"] * 2
        gang.kill()
    gangs.run(with_keys, keys, train_rank, config, None, world_size=2, **asked)
    committed = places(object_store, prefix)
    assert sorted(committed) == [8, 10]
    for step, place in committed.items():
        folder = tmp_path / "whole" / f"step-{step:08d}"
        assert same_bits(whole_tensors(place), whole_tensors(folder))
        assert trainer_state(place) == trainer_state(folder)
    assert len(list((object_store.folder / BUCKET / prefix).glob("step-*"))) == 2


def test_a_run_that_begins_from_a_bucket_is_the_one_that_begins_from_a_folder(  # noqa: PLR0917 - fixtures
    gangs: GangStarter,
    object_store: ObjectStore,
    tmp_path: Path,
    prefix: str,
    asked: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, tokenizer, chat template; a base beneath adapters, known by its content."""
    data = write_conversations(tmp_path / "data")
    folder = write_tiny_llama(tmp_path / "model")
    keys = object_store.environment()
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    model = any_path(f"s3://{BUCKET}/{prefix}/model")
    for file in folder.iterdir():
        write_file(model / file.name, file.read_bytes())
    short = {"steps": 2, "checkpoint": {"every_steps": 2}, "lora": {"rank": 2}}
    for place, saved in ((folder, {"checkpoint_folder": tmp_path / "whole"}), (model, asked)):
        config = tuned(place, data, **short, evaluation=None)
        gangs.run(with_keys, keys, train_rank, config, None, world_size=2, **saved)
    ours, theirs = places(object_store, prefix)[2], tmp_path / "whole" / "step-00000002"
    assert same_bits(whole_tensors(ours), whole_tensors(theirs))
    assert trainer_state(ours)["base"] == trainer_state(theirs)["base"]


def test_other_numbers_of_ranks_restore_what_three_saved(
    gangs: GangStarter, object_store: ObjectStore, tmp_path: Path, asked: dict[str, str]
) -> None:
    config, keys = small(tmp_path), object_store.environment()
    gangs.run(with_keys, keys, save_steps, config, [1, 2], 3, world_size=3, **asked)
    for world_size in (1, 4):
        results = gangs.run(with_keys, keys, restore_once, config, world_size=world_size, **asked)
        assert {step for step, _ in results} == {2}
        assert set.union(*(values for _, values in results)) == {2.0}


def test_a_bucket_that_cannot_be_used_is_told_to_every_rank(
    gangs: GangStarter, object_store: ObjectStore, tmp_path: Path
) -> None:
    config, keys = small(tmp_path), object_store.environment()
    where = {"checkpoint_bucket": "s3://no-such-bucket/run"}
    with gangs.gang(with_keys, keys, train_rank, config, None, world_size=2, **where) as gang:
        lines = [lines[0] for lines in gang.results()]
        assert all("NoSuchBucket (404): make the bucket" in line for line in lines)
        assert gang.exit_codes() == [ExitCode.APPLICATION] * 2
