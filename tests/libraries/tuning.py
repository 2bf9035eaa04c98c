"""One fine-tuning by this trainer and by TRL: the same model, records, optimizer and figures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
import transformers
import trl

from drumline_contract.config import TrainerConfig, merge
from drumline_contract.shapes.hugging_face import with_model_of_folder
from drumline_trainer.data.run_data import open_run_data
from drumline_trainer.metrics.losses import read_losses
from tests.libraries.small_llama import PROGRAM

Record = Mapping[str, Any]
REWARDS = {"chosen": "chosen", "rejected": "rejected", "accuracies": "accuracy"}
"""What TRL calls them, and what we do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What a run says of itself."""

    losses: list[float]
    """Of every step."""
    held_out: dict[int, float] = field(default_factory=dict[int, float])
    """By finished steps."""
    rewards: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Of every step, by TRL's names."""
    step_seconds: list[float] = field(default_factory=list[float])


def run_of(model: Path, data: Path, /, **changes: Any) -> TrainerConfig:
    """A run of ours, a record in each window; TRL's has the same optimizer."""
    raw = {
        "model_from": str(model),
        "data": {"source": str(data), "pattern": "train.jsonl", "packing": "padded"},
        "optimizer": {"warmup_steps": 0, "schedule": "constant", "weight_decay": 0.0},
    }
    return TrainerConfig.from_dict(with_model_of_folder(merge(raw, changes)))


def by_us(config: TrainerConfig, folder: Path) -> Curve:
    """Trained by the command line; checkpoints are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(config.to_dict()))
    given = ("--config", str(folder / "run.json"), "--checkpoint-folder", str(folder))
    subprocess.run([*PROGRAM, *given], check=True)
    steps = _lines(folder / "metrics" / "steps.jsonl")
    rewards = [entry["rewards"] for entry in steps if entry.get("rewards")]
    return Curve(
        losses=list(read_losses(folder / "metrics.jsonl").values()),
        held_out={
            entry["step"]: entry["loss"]
            for entry in _lines(folder / "metrics" / "evaluations.jsonl")
        },
        rewards={name: [each[ours] for each in rewards] for name, ours in REWARDS.items()}
        if rewards
        else {},
    )


def show(what: str, ours: Curve, theirs: Curve) -> None:
    """Both, for the record; the runner prints it."""
    print(f"\n{what}: losses {_ends(ours.losses)}, TRL's {_ends(theirs.losses)}")
    apart = max(abs(a / b - 1) for a, b in zip(ours.losses, theirs.losses, strict=True))
    print(f"  apart in a step by {apart:.1e} at most")
    for step, loss in ours.held_out.items():
        print(f"  step {step}: held out {loss:.4f}, TRL's {theirs.held_out[step]:.4f}")
    for name, values in ours.rewards.items():
        print(f"  {name} {_ends(values)}, TRL's {_ends(theirs.rewards[name])}")


def _ends(values: Sequence[float]) -> str:
    return f"{values[0]:.4f} .. {values[-1]:.4f}"


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def in_our_order(config: TrainerConfig, records: Sequence[Record]) -> list[Record]:
    """The records as our run takes them; the number of a window is that of its record."""
    dataset = open_run_data(config).training
    count = config.steps * config.global_batch_size
    return [records[dataset.window_at(sample)] for sample in range(count)]


def by_trl(
    config: TrainerConfig,
    folder: Path,
    records: Sequence[Record],
    *,
    held_out: Sequence[Record] = (),
    in_order: bool = True,
    adapter: Path | None = None,
) -> Curve:
    """Trained by SFTTrainer, or by DPOTrainer where the run learns from preferences."""
    torch.manual_seed(config.seed)
    assert config.model_from is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_from, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.model_from)
    tokenizer.pad_token = tokenizer.eos_token
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    preferring = config.dpo is not None
    base = trl.DPOTrainer if preferring else trl.SFTTrainer
    settings = {"beta": config.dpo.beta} if config.dpo else {"assistant_only_loss": True}
    arguments = (trl.DPOConfig if preferring else trl.SFTConfig)(
        output_dir=str(folder),
        max_length=None,
        seed=config.seed,
        per_device_train_batch_size=config.global_batch_size,
        per_device_eval_batch_size=max(1, len(held_out)),
        eval_strategy="steps" if held_out else "no",
        eval_steps=config.evaluation.every_steps if config.evaluation else None,
        eval_on_start=bool(held_out),
        max_steps=config.steps,
        logging_steps=1,
        max_grad_norm=config.optimizer.max_gradient_norm,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        **settings,
    )
    optimizer = torch.optim.AdamW(
        (weight for weight in model.parameters() if weight.requires_grad),
        lr=config.optimizer.learning_rate,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.epsilon,
        weight_decay=0.0,
    )
    trainer = (in_order_of(base) if in_order else base)(
        model=model,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(list(records)),
        eval_dataset=datasets.Dataset.from_list(list(held_out)) if held_out else None,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        args=arguments,
    )
    trainer.train()
    log: list[dict[str, float]] = trainer.state.log_history
    steps = [entry for entry in log if "loss" in entry]
    return Curve(
        losses=[entry["loss"] for entry in steps],
        held_out={int(entry["step"]): entry["eval_loss"] for entry in log if "eval_loss" in entry},
        rewards={name: [entry[f"rewards/{name}"] for entry in steps] for name in REWARDS}
        if preferring
        else {},
    )


def in_order_of(trainer: type[Any]) -> type[Any]:
    """The trainer without a shuffle of its own."""

    class InOrder(trainer):
        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder
