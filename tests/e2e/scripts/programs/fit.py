"""Lightning fits a tiny model under DDP, saves every ten steps and goes on from there.

L1 adds the callback of `drumline_client`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import journal
import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

SAVES = journal.FOLDER / "saves"


class Rows:
    """A loader that Lightning saves, as torchdata's StatefulDataLoader; a plain one begins anew."""

    def __init__(self) -> None:
        self.position = 0

    def __len__(self) -> int:
        return journal.STEPS

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < journal.STEPS:
            self.position += 1
            seed = 1000 * self.position + journal.RANK
            yield torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Rows:
        return Rows()


class Journal(lightning.Callback):
    """Before ours: a script may be stopped once it has saved, in the middle of the later hooks."""

    def on_train_batch_end(self, trainer: Any, _: Any, outputs: Any, *__: Any) -> None:
        journal.finished(trainer.global_step, float(outputs["loss"]))


def newest() -> Path | None:
    steps = {int(path.stem.removeprefix("step-")): path for path in SAVES.glob("step-*.ckpt")}
    return steps[max(steps)] if steps else None


def main() -> None:
    SAVES.mkdir(exist_ok=True)
    callbacks: list[Any] = [
        Journal(),
        ModelCheckpoint(
            dirpath=SAVES,
            filename="step-{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=journal.EVERY,
            save_top_k=-1,
        ),
    ]
    if journal.LEVEL != "L0":
        from drumline_client.adapters.lightning import DrumlineCallback  # noqa: PLC0415 - L1

        callbacks.append(DrumlineCallback(str(SAVES)))
    journal.began()
    model = Model()
    trainer = lightning.Trainer(
        default_root_dir=journal.FOLDER,
        max_steps=journal.STEPS,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(model, ckpt_path=newest())
    if trainer.global_step == journal.STEPS:
        journal.trained(model.state_dict())


main()
