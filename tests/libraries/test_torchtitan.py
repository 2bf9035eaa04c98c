"""torchtitan's manager under a loop as its Trainer's, which itself asks for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torchtitan", reason="make test-all WHAT=libraries")

from torchtitan.components.checkpointer import CheckpointManager

from drumline_client.adapters.torchtitan import DrumlineCheckpoints
from drumline_client.environment import RankPlace, SnapshotPlace, rank_place
from drumline_client.run import Run
from drumline_client.wire import PartSaved, SnapshotWritten
from tests.libraries.notices import run_that_saves
from tests.played_agent import played_agent

STEPS = 6


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """torchtitan's managers ask for their rank."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Rows:
    """A loader with a position."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Training:
    """As torchtitan's Trainer: the same calls of the manager in the same order."""

    def __init__(self, folder: Path, *, run: Run | None, **options: Any) -> None:
        torch.manual_seed(1)
        self.config = SimpleNamespace(training=SimpleNamespace(steps=STEPS))
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.loader = Rows()
        self.step = 0
        self.losses: dict[int, float] = {}
        kind = CheckpointManager if run is None else DrumlineCheckpoints
        config = kind.Config(enable=True, keep_latest_k=0, **options)
        self.checkpointer = config.build(
            dataloader=self.loader,
            model_parts=[self.model],
            optimizers=self.optimizer,
            lr_schedulers=self.scheduler,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(folder),
            **({} if run is None else {"run": run}),
        )

    def train(self) -> Training:
        self.checkpointer.load(step=-1)
        while self.step < self.config.training.steps:
            self.step += 1
            self.loader.position += 1
            rows = torch.randn(2, 4, generator=torch.Generator().manual_seed(self.loader.position))
            self.optimizer.zero_grad()
            loss = self.model(rows).square().mean()
            loss.backward()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizer.step()
            self.scheduler.step()
            self.losses[self.step] = float(loss)
            self.checkpointer.save(self.step, last_step=self.step == STEPS)
        self.checkpointer.close()
        return self

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_notice_is_saved_at_its_step_and_the_loop_ends(tmp_path: Path, mode: str) -> None:
    with played_agent() as agent:
        run = run_that_saves(agent, step=3)
        stopped = Training(tmp_path, run=run, async_mode=mode).train()
        path = str(tmp_path / "checkpoint" / "step-3")
        assert agent.wait_for(PartSaved) == PartSaved(step=3, path=path)
    assert set(stopped.losses) == {1, 2, 3}
    resumed = Training(tmp_path, run=Run(None, place=rank_place({}))).train()
    assert set(resumed.losses) == {4, 5, 6}


def test_a_snapshot_goes_on_with_the_losses_of_an_undisturbed_run(tmp_path: Path) -> None:
    undisturbed = Training(tmp_path / "undisturbed", run=None).train()
    place = RankPlace(rank=0, local_rank=0, world_size=1)
    with played_agent() as agent:

        def attempt(restore: int | None) -> Run:
            memory = SnapshotPlace(
                folder=tmp_path / "memory", generation=1, attempt=0, restore_step=restore
            )
            return Run(agent.path, place=place, snapshots=memory)

        before = Training(tmp_path / "run", run=attempt(None), snapshot_interval=4)
        before.config.training.steps = 5  # it dies
        before.train()
        assert agent.wait_for(SnapshotWritten).step == 4
        after = Training(tmp_path / "run", run=attempt(4), snapshot_interval=4).train()
    assert before.losses | after.losses == undisturbed.losses
    assert set(after.losses) == {5, 6}
