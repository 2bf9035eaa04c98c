from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch", reason="make test-all WHAT=libraries")

from drumline_client.adapters.lightning import DrumlineCallback  # noqa: E402
from drumline_client.wire import PartSaved, StepReport  # noqa: E402
from tests.libraries.notices import run_that_saves  # noqa: E402
from tests.played_agent import played_agent  # noqa: E402

STEPS = 6


class Rows:
    """A loader that Lightning saves, as torchdata's StatefulDataLoader; a plain one begins anew."""

    def __init__(self) -> None:
        self.position = 0
        self.rows = torch.randn(STEPS, 2, 4, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < STEPS:
            self.position += 1
            yield self.rows[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Model(lightning.LightningModule):
    """Momentum makes a lost optimizer state show in the losses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
        self.losses: dict[int, float] = {}

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).pow(2).mean()
        self.losses[batch_idx + 1] = float(loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> Rows:
        return Rows()


def trainer(folder: Path, *callbacks: Any) -> Any:
    return lightning.Trainer(
        default_root_dir=folder,
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )


def test_a_notice_is_saved_at_its_step_and_nothing_is_lost(tmp_path: Path) -> None:
    undisturbed, stopped, resumed = Model(), Model(), Model()
    trainer(tmp_path).fit(undisturbed)
    with played_agent() as agent:
        run = run_that_saves(agent, step=3)
        drumline = DrumlineCallback(str(tmp_path / "saves"), run)
        assert drumline.newest_checkpoint() is None
        trainer(tmp_path, drumline).fit(stopped, ckpt_path=drumline.newest_checkpoint())
        path = str(tmp_path / "saves" / "step-3.ckpt")
        assert agent.wait_for(PartSaved) == PartSaved(step=3, path=path)
        run.done()
        while (report := agent.wait_for(StepReport)).phase != "done":
            pass
    assert set(stopped.losses) == {1, 2, 3}
    assert (report.step, report.total_steps) == (3, STEPS)
    assert report.loss is not None
    (tmp_path / "saves" / "step-5.part").touch()  # of a rank that died while it wrote
    assert drumline.newest_checkpoint() == path
    trainer(tmp_path).fit(resumed, ckpt_path=path)
    assert resumed.losses == {step: undisturbed.losses[step] for step in (4, 5, 6)}
