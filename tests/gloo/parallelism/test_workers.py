"""Parameter servers and local SGD: what they train, how stale, and how they go on and end."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from drumline_client.snapshot_file import open_snapshot, snapshot_file
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_trainer.metrics.losses import LOSSES_FILE, read_losses
from drumline_trainer.parallelism.data_parallel.parameter_server.clocks import most_missed
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_with_death
from tests.gloo.parallelism.worker_ranks import Run, work_through
from tests.gloo.stored import same_bits, whole_tensors

pytestmark = pytest.mark.extended(keep=3, of="numbers of ranks")

RANKS, STEPS, HELD, BOUND = 4, 20, 5, 2
SGD = {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_gradient_norm": 1e6}
SERVERS: dict[str, dict[str, Any]] = {
    "servers": {"server": {"servers": 2}},
    "hierarchical": {"server": {"servers": 2, "copies_per_node": 2}},
    "servers, tensor": {"tensor": 2, "server": {"servers": 2}},
    "servers, pipeline": {"pipeline": 2, "server": {"servers": 2}},
}


def local(every: int, *, rate: float, momentum: float, **more: Any) -> dict[str, Any]:
    sgd = {"every_steps": every, "outer_learning_rate": rate, "outer_momentum": momentum}
    return {"data_parallel": "ddp", "local_sgd": sgd, **more}


def usual(parallelism: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the changes of a run from the small configuration."""
    checkpoint = {"every_steps": 8, "snapshot_every_steps": 4}
    common = {"checkpoint": checkpoint, "steps": STEPS, "log_every_steps": 4}
    return {"model": {"kv_heads": 2}, "parallelism": parallelism, **common, **changes}


def asynchronous(**server: Any) -> dict[str, Any]:
    mode = {"servers": 2, "mode": "asynchronous", "max_staleness": BOUND}
    return {"data_parallel": "parameter-server", "server": {**mode, **server}}


RUNS = {
    "ddp": usual({"data_parallel": "ddp"}),
    "averaged gradients": usual({"data_parallel": "ddp"}, optimizer=SGD),
    "averaged weights": usual(local(1, rate=1.0, momentum=0.0), optimizer=SGD),
    **{
        name: usual({"data_parallel": "parameter-server", **parallelism})
        for name, parallelism in SERVERS.items()
    },
    "diloco": usual(local(4, rate=0.7, momentum=0.9)),
    "diloco of shards": usual(local(4, rate=0.7, momentum=0.9, data_parallel="fsdp", replicate=2)),
    "diloco, tensor": usual(local(4, rate=0.7, momentum=0.9, tensor=2)),
    "diloco, pipeline": usual(local(4, rate=0.7, momentum=0.9, pipeline=2)),
    "servers in bf16": usual(
        {"data_parallel": "parameter-server", "server": {"servers": 2}}, precision="bf16"
    ),
    "asynchronous": usual(asynchronous(), checkpoint={"every_steps": STEPS}, log_every_steps=STEPS),
    "asynchronous nodes": usual(asynchronous(copies_per_node=2)),
}


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The checkpoint folders of all runs by name. A run trains when a test first asks for it."""

    gangs: GangStarter
    root: Path

    def __getitem__(self, name: str) -> Path:
        folder = self.root / name
        if not folder.exists():
            of = name.removesuffix(" again")
            config = small(self.root / "text", **RUNS[of])
            whole = Run(config=config, folder=folder)
            if of == name:
                held = (HELD, HELD + BOUND) if name == "asynchronous" else None
                self._train(replace(whole, hold=held))
            else:
                # with asynchronous servers no step is left to do in the third run
                more = [whole] * (2 if config.parallelism.asynchronous else 1)
                self._train(replace(whole, until=8), *more)
        return folder

    def _train(self, *runs: Run) -> None:
        with self.gangs.gang(work_through, list(runs), world_size=RANKS) as gang:
            for run in runs:
                if run.hold is not None:
                    assert gang.pipes[-1].recv() == "held"
                    assert gang.pipes[0].recv() == "ahead"
                    gang.pipes[-1].send("go on")
                assert gang.results() == ["done"] * RANKS
            assert gang.exit_codes() == [0] * RANKS


@pytest.fixture(scope="module")
def folders(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(gangs=gangs, root=tmp_path_factory.mktemp("workers"))


def losses(folder: Path) -> dict[int, float]:
    result = read_losses(folder / LOSSES_FILE)
    assert sorted(result) == list(range(1, STEPS + 1))
    return {step: result[step] or 0.0 for step in result}


def weights(folder: Path) -> dict[str, np.ndarray]:
    return whole_tensors(folder / f"step-{STEPS:08d}")


def assert_same_training(path: Path, other: Path) -> None:
    assert losses(path) == pytest.approx(losses(other), rel=1e-6)
    mine, theirs = weights(path), weights(other)
    for name in theirs:
        if name.startswith("model."):
            error = np.linalg.norm(mine[name] - theirs[name])
            assert error <= 1e-5 * np.linalg.norm(theirs[name]), name


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics" / "steps.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", SERVERS)
def test_synchronous_servers_train_as_ddp(folders: Folders, name: str) -> None:
    assert_same_training(folders[name], folders["ddp"])
    assert weights(folders[name]).keys() == weights(folders["ddp"]).keys()


def test_servers_keep_fp32_weights_beside_a_low_precision(folders: Folders) -> None:
    low, exact = losses(folders["servers in bf16"]), losses(folders["ddp"])
    assert low == pytest.approx(exact, rel=2e-2)
    assert low != exact
    assert {str(tensor.dtype) for tensor in weights(folders["servers in bf16"]).values()} == {
        "float32"
    }


@pytest.mark.parametrize("name", ["diloco, tensor", "diloco, pipeline"])
def test_what_a_copy_is_made_of_changes_nothing(folders: Folders, name: str) -> None:
    assert_same_training(folders[name], folders["diloco of shards"])


def test_meeting_in_every_step_is_averaging_gradients(folders: Folders) -> None:
    assert_same_training(folders["averaged weights"], folders["averaged gradients"])


@pytest.mark.parametrize("name", ["diloco", "diloco of shards"])
def test_copies_train_apart_and_are_equal_once_they_have_met(folders: Folders, name: str) -> None:
    first, *_, last = losses(folders[name]).values()
    assert last < first
    shards = 1 if name == "diloco" else 2
    held = [snapshot(folders[name], rank) for rank in range(RANKS)]
    for mine, theirs in zip(held[:shards], held[-shards:], strict=True):
        for kind, equal in (("model.", True), ("outer.", True), ("optimizer.exp_avg.", False)):
            results = [
                (mine[key], other)
                for key, tensor in named(theirs).items()
                for other in [tensor]
                if key.startswith(kind) and tensor.size
            ]
            assert results
            assert all(a.tobytes() == b.tobytes() for a, b in results) == equal, kind


def snapshot(folder: Path, rank: int) -> dict[str, np.ndarray]:
    """The tensors of a rank's newest snapshot by name, whichever copy of the model it is."""
    path = snapshot_file(folder / "memory", rank=rank, step=16)
    with open_snapshot(path) as (_, body):
        return named(load(bytes(body)))


def named(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    plain = {key.partition(" ")[0]: tensor for key, tensor in tensors.items()}
    return {
        key.partition(".")[2] if key.startswith("copy-") else key: tensor
        for key, tensor in plain.items()
    }


@pytest.mark.parametrize("name", ["servers", "diloco of shards"])
def test_a_restart_has_the_same_bits(folders: Folders, name: str) -> None:
    again = folders[f"{name} again"]
    assert losses(again) == losses(folders[name])
    assert same_bits(weights(again), weights(folders[name]))


def test_workers_drift_apart_up_to_the_bound_and_learn(folders: Folders) -> None:
    first, *_, last = losses(folders["asynchronous"]).values()
    assert last < first
    (record,) = records(folders["asynchronous"])
    staleness = record["staleness"]
    assert staleness["steps_ahead"] == BOUND, "the held worker was waited for, and not earlier"
    assert 0 < staleness["mean"] <= staleness["most"]
    assert staleness["most"] <= most_missed(workers=RANKS, bound=BOUND)


def test_nodes_are_workers_and_go_on_from_what_servers_saved(folders: Folders) -> None:
    for name in ("asynchronous nodes", "asynchronous nodes again"):
        first, *_, last = losses(folders[name]).values()
        assert last < first
        for record in records(folders[name]):
            assert record["staleness"]["most"] <= most_missed(workers=2, bound=BOUND)


def test_copies_that_train_alone_say_how_old_their_weights_become(
    folders: Folders,
) -> None:
    results = [record["staleness"] for record in records(folders["diloco"])]
    assert results == [{"mean": 4.5, "most": 9, "steps_ahead": 0}] * 5
    assert [record["staleness"] for record in records(folders["ddp"])] == [None] * 5


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_server_that_dies_ends_the_run_of_all(
    gangs: GangStarter, tmp_path: Path, mode: str
) -> None:
    parallelism = {"data_parallel": "parameter-server", "server": {"servers": 2, "mode": mode}}
    config: TrainerConfig = small(
        tmp_path,
        global_batch_size=6,
        parallelism=parallelism,
        log_every_steps=10,
        checkpoint={"every_steps": 10},
    )
    with gangs.gang(train_with_death, config, 3, world_size=3) as gang:
        for rank in (0, 2):
            assert gang.pipes[rank].recv()
        assert gang.exit_codes() == [ExitCode.PEER_LOST, -9, ExitCode.PEER_LOST]
