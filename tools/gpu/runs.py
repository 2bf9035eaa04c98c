"""Runs of the trainer, as its command line starts them, and what they leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.metrics.sinks import STEPS_FILE
from tools.gpu.machine import ROOT, Machine

RUN_SECONDS = 240
DOCUMENTS = 2000
_ON_GPU: dict[str, Any] = {
    "model": {"layers": 8, "hidden_size": 1024, "ffn_size": 2816, "heads": 16, "kv_heads": 8},
    "data": {"sequence_length": 1024},
    "global_batch_size": 8,
    "precision": "bf16",
}
_ON_PROCESSORS: dict[str, Any] = {
    "model": {"layers": 2, "hidden_size": 32, "ffn_size": 64, "heads": 2, "kv_heads": 2},
    "data": {"sequence_length": 32},
    "global_batch_size": 8,
    "precision": "bf16",
}
_ALWAYS: dict[str, Any] = {"steps": 12, "log_every_steps": 1, "optimizer": {"warmup_steps": 2}}


class CheckFailedError(Exception):
    """What a check found, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A run that ended well."""

    losses: dict[int, float]
    steps: list[dict[str, Any]]
    """The rows of steps.jsonl."""

    @property
    def bits(self) -> tuple[str, ...]:
        """The losses, to the last bit."""
        return tuple(loss.hex() for _, loss in sorted(self.losses.items()))

    def apart(self, other: Trained) -> float:
        """The largest relative difference of two losses of a step."""
        if self.losses.keys() != other.losses.keys():
            raise CheckFailedError(f"{len(self.losses)} steps and {len(other.losses)} steps")
        return max(
            abs(loss - other.losses[step]) / abs(other.losses[step])
            for step, loss in self.losses.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A machine and a folder for what runs write."""

    machine: Machine
    folder: Path
    text: Path

    @classmethod
    def prepare(cls, machine: Machine, folder: Path) -> Bench:
        """Write the text that the runs train on: the same everywhere."""
        text = folder / "text"
        text.mkdir()
        words = b"the quick brown fox jumps over a lazy dog and the drum goes on ".split()
        line = [words[i * i * 7 % 13 % len(words)] for i in range(200_000)]
        begin = 0
        for number in range(DOCUMENTS):  # of unlike lengths, several in each window
            end = begin + 20 + number * number % 160
            (text / f"{number:04}.py").write_bytes(b" ".join(line[begin:end]))
            begin = end
        return cls(machine=machine, folder=folder, text=text)

    def new_folder(self) -> Path:
        """An empty one; checks are processes, and their names may not meet."""
        return Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))

    def config(self, *changes: Mapping[str, Any]) -> dict[str, Any]:
        """The small model of this machine with these changes, checked."""
        raw = merge(_ON_GPU if self.machine.on_gpu else _ON_PROCESSORS, _ALWAYS)
        raw = merge(raw, {"data": {"source": str(self.text), "pattern": "**/*"}})
        for change in changes:
            raw = merge(raw, dict(change))
        TrainerConfig.from_dict(raw)
        return raw

    def command(
        self, config: Mapping[str, Any], folder: Path, *, ranks: int, checkpoints: Path | None
    ) -> list[str]:
        """The command line."""
        whole = merge(dict(config), {"metrics": {"folder": str(folder)}})
        file = folder / "run.json"
        file.write_text(json.dumps(whole))
        words = [sys.executable, "-m", "drumline_trainer", "--config", str(file)]
        words += ["--ranks", str(ranks), "--metrics-file", str(folder / "losses.jsonl")]
        return words if checkpoints is None else [*words, "--checkpoint-folder", str(checkpoints)]

    def train(
        self,
        *changes: Mapping[str, Any],
        ranks: int = 1,
        checkpoints: Path | None = None,
        device: str | None = None,
        under: Sequence[str] = (),
    ) -> Trained:
        """Train to the end, `under` another program if that is given.

        Raises:
            CheckFailedError: it did not end well.
        """
        folder = self.new_folder()
        environment = self.machine.environment
        if device is not None:
            environment["DRUMLINE_DEVICE"] = device
        done = subprocess.run(
            [
                *under,
                *self.command(self.config(*changes), folder, ranks=ranks, checkpoints=checkpoints),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
        if done.returncode != 0:
            raise CheckFailedError(f"exit code {done.returncode}: {_last_words(done.stdout)}")
        return _trained(folder)

    def train_and_kill(
        self, *changes: Mapping[str, Any], ranks: int, checkpoints: Path, after: str
    ) -> None:
        """Kill the run, all its ranks, once it has printed this."""
        folder = self.new_folder()
        words = self.command(self.config(*changes), folder, ranks=ranks, checkpoints=checkpoints)
        with subprocess.Popen(
            words,
            cwd=ROOT,
            env=self.machine.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            seen: list[str] = []
            for line in process.stdout:
                seen.append(line)
                if after in line:
                    process.send_signal(signal.SIGKILL)  # the ranks die with it
                    break
        if process.returncode != -signal.SIGKILL:
            raise CheckFailedError(f"it ended before it was killed: {_last_words(''.join(seen))}")


def _trained(folder: Path) -> Trained:
    losses = read_losses(folder / "losses.jsonl")
    broken = [step for step, loss in losses.items() if loss is None]
    if broken or not losses:
        raise CheckFailedError(f"losses are not finite at the steps {broken}")
    rows = [json.loads(line) for line in (folder / STEPS_FILE).read_text().splitlines()]
    return Trained(losses={s: loss for s, loss in losses.items() if loss is not None}, steps=rows)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]
