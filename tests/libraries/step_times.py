"""`make test-all WHAT=libraries ARGS=steps`: a step of ours beside one of a library's trainer.

One process of each kind of trainer, in turns with ours in the same process: the same weights and
samples, full windows without padding, fp32, the same clipping and AdamW. Theirs are whole loops,
with their own loading and logging; what no step of theirs needs (metrics of answers in TRL's) they
do anyway, as it is what their users wait for.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
import transformers
import trl

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.initialize import initialize
from drumline_trainer.recovery.rendezvous_store import listen, store_on
from tests.libraries.tuning import in_order_of
from tests.unit.trainer.data.records.conversations import write_chat_model
from tools.bench.report import Row, publish
from tools.bench.trainer_steps import LENGTH, MODEL, SAMPLES, WARM_UP, Beside, in_turns

STEPS = 14 + WARM_UP
GOAL = 0.97
SEED = 7
TRAINERS = {
    "transformers' Trainer": (transformers.Trainer, transformers.TrainingArguments),
    "TRL's SFTTrainer": (trl.SFTTrainer, trl.SFTConfig),
}


def main() -> None:
    """Measure beside each, and publish."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    print(f"load average of this machine: {os.getloadavg()[0]:.1f}", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder))
        for name in TRAINERS:
            measured = _measured(name, config, Path(folder))
            first = measured.losses[:5]
            apart = max(abs(ours / theirs - 1) for ours, theirs in first)
            assert apart < 1e-4, f"not the same training: {first}"
            ratio = measured.ratio
            ours, theirs = median(measured.ours), median(measured.theirs)
            rows += [
                Row(name=f"step beside {name}: ours", value=1000 * ours, unit="ms"),
                Row(name=f"step beside {name}: theirs", value=1000 * theirs, unit="ms"),
                Row(
                    name=f"{name} / ours",
                    value=ratio,
                    unit="x",
                    goal=f">= {GOAL} x",
                    met=ratio >= GOAL,
                ),
            ]
    publish("libraries", rows, command="python -m tests.libraries steps")


def _config(folder: Path) -> TrainerConfig:
    text = folder / "text"
    text.mkdir()
    (text / "text.py").write_bytes(bytes(i * i * 7 % 251 for i in range(200_000)))
    raw = {
        "model": MODEL,
        "data": {"sequence_length": LENGTH, "source": str(text)},
        "optimizer": {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0},
        "steps": STEPS,
        "seed": SEED,
        "global_batch_size": SAMPLES,
        "log_every_steps": 10,
    }
    config = TrainerConfig.from_dict(merge(raw, {}))
    module = build_on_meta(config.model).to_empty(device="cpu")
    initialize(module, seed=SEED)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    write_chat_model(folder / "model")  # for TRL, which asks for a tokenizer
    export_hugging_face(weights, config.model, folder / "model")
    return config


def _measured(name: str, config: TrainerConfig, folder: Path) -> Beside:
    listener = listen(0, address="127.0.0.1")
    port = listener.getsockname()[1]
    store = store_on(listener)
    placement = Placement(rank=0, world_size=1, store_port=port, address="127.0.0.1")
    measured = in_turns(placement, config, lambda: LibraryRun(name, config, folder))
    del store
    return measured


class LibraryRun(transformers.TrainerCallback):
    """A library's loop in a thread of its own, which goes on only when it is its turn."""

    def __init__(self, name: str, config: TrainerConfig, folder: Path) -> None:
        self.losses: list[float] = []
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._failure: BaseException | None = None
        trainer, settings = TRAINERS[name]
        torch.use_deterministic_algorithms(mode=False)
        self._trainer = _trainer(trainer, settings, config, folder)
        self._trainer.add_callback(self)
        threading.Thread(target=self._train, daemon=True).start()

    def turn(self, step: int) -> float:
        """Seconds from the end of a step to that of the next; of the first, the start too."""
        del step
        torch.use_deterministic_algorithms(mode=False)
        began = time.perf_counter()
        self._theirs.release()
        self._ours.acquire()
        seconds = time.perf_counter() - began
        torch.use_deterministic_algorithms(mode=True)
        if self._failure is not None:
            raise self._failure
        return seconds

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called before it logs: that is in its next turn."""
        self._ours.release()
        self._theirs.acquire()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """The loss of the last step."""
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def _train(self) -> None:
        self._theirs.acquire()
        try:
            self._trainer.train()
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            self._failure = error
        finally:
            self._ours.release()


def _trainer(trainer: Any, settings: Any, config: TrainerConfig, folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    samples = open_dataset(config.data, seed=config.seed)
    batch = samples.batch(range(config.steps * config.global_batch_size))
    rows = [
        {"input_ids": inputs.tolist(), "labels": targets.tolist()}
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True)
    ]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.optimizer.learning_rate,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.epsilon,
        weight_decay=0.0,
        fused=True,
    )
    return in_order_of(trainer)(
        model=model,
        train_dataset=datasets.Dataset.from_list(rows),
        data_collator=_collated,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        args=settings(
            output_dir=str(folder / "theirs"),
            per_device_train_batch_size=config.global_batch_size,
            max_steps=config.steps,
            max_grad_norm=config.optimizer.max_gradient_norm,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
        ),
    )


def _collated(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """With the targets as ours has them, so that no token more is computed."""
    inputs, targets = (
        torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")
    )
    seen = torch.ones_like(inputs)  # which TRL counts
    return {
        "input_ids": inputs,
        "attention_mask": seen,
        "labels": targets,
        "shift_labels": targets,
    }


if __name__ == "__main__":
    main()
