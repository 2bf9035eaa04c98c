"""Hugging Face's Trainer fine-tunes a tiny GPT-2, saves every ten steps and goes on from there.

L1 adds the callback of `drumline_client` and its search for the newest whole checkpoint.
"""

from __future__ import annotations

from typing import Any

import journal
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint


class Journal(transformers.TrainerCallback):
    def on_log(self, *arguments: Any, **values: Any) -> None:
        if "loss" in values["logs"]:
            journal.finished(arguments[1].global_step, values["logs"]["loss"])


def main() -> None:
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
    tokens = torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(2))
    folder = str(journal.FOLDER / "output")
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            folder,
            max_steps=journal.STEPS,
            save_steps=journal.EVERY,
            logging_steps=1,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            ddp_backend="gloo",
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[Journal()],
    )
    journal.began()
    find = get_last_checkpoint
    if journal.LEVEL != "L0":
        from drumline_client.adapters.huggingface import (  # noqa: PLC0415 - L1
            DrumlineCallback,
            newest_checkpoint,
        )

        trainer.add_callback(DrumlineCallback())
        find = newest_checkpoint
    (journal.FOLDER / "output").mkdir(exist_ok=True)
    trainer.train(resume_from_checkpoint=find(folder))
    if trainer.state.global_step == journal.STEPS:
        journal.trained(trainer.model.state_dict())


main()
