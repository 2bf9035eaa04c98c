"""The same fine-tuning by TRL's SFTTrainer: the same samples in the same order, the same curve."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="make test-all WHAT=libraries")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

from drumline_trainer.config import TrainerConfig  # noqa: E402
from drumline_trainer.data.run_data import open_run_data  # noqa: E402
from drumline_trainer.metrics.losses import read_losses  # noqa: E402
from tests.gloo.tuned import tuned, write_conversations, write_tiny_llama  # noqa: E402
from tests.unit.trainer.data.records.conversations import MARKED, conversation  # noqa: E402

STEPS, BATCH, RATE = 16, 4, 0.005


def order(config: TrainerConfig) -> Iterator[dict[str, Any]]:
    """The conversations as our run takes them."""
    dataset = open_run_data(config).training
    for sample in range(STEPS * BATCH):
        yield {"messages": conversation(dataset.window_at(sample))["messages"]}


class InOrder(trl.SFTTrainer):  # type: ignore[misc, name-defined]
    """Without a shuffle of its own."""

    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def theirs(model_folder: Path, config: TrainerConfig, folder: Path) -> tuple[list[float], float]:
    """Losses of the steps, and the one held out at the end."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    tokenizer.pad_token = tokenizer.eos_token
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    trainer = InOrder(
        model=model,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(list(order(config))),
        eval_dataset=datasets.Dataset.from_list([conversation(n) for n in range(96, 108)]),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        args=trl.SFTConfig(
            output_dir=str(folder),
            assistant_only_loss=True,
            max_length=None,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=12,
            max_steps=STEPS,
            logging_steps=1,
            max_grad_norm=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
        ),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.evaluate()["eval_loss"]


def test_the_curve_is_that_of_trl(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", template=MARKED)
    config = tuned(
        model,
        write_conversations(tmp_path / "data"),
        data={"packing": "padded"},
        optimizer={
            "learning_rate": RATE,
            "warmup_steps": 0,
            "schedule": "constant",
            "weight_decay": 0.0,
        },
        steps=STEPS,
        global_batch_size=BATCH,
        checkpoint={"every_steps": STEPS},
        evaluation={"every_steps": STEPS},
    )
    (tmp_path / "run.json").write_text(json.dumps(config.to_dict()))
    program = (sys.executable, "-m", "drumline_trainer", "--config", str(tmp_path / "run.json"))
    subprocess.run((*program, "--checkpoint-folder", str(tmp_path / "ours")), check=True)
    losses, held_out = theirs(model, config, tmp_path / "theirs")
    ours = list(read_losses(tmp_path / "ours" / "metrics.jsonl").values())
    assert ours == pytest.approx(losses, rel=2e-3)
    lines = (tmp_path / "ours" / "metrics" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["loss"] == pytest.approx(held_out, rel=2e-3)
    assert held_out < 0.8 * losses[0]
