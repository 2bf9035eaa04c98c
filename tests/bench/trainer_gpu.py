"""How much of one GPU's arithmetic a model's training uses; without a GPU only the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

from tests.bench.report import Row
from tests.bench.trainer_start import ENVIRONMENT, ROOT

SIZES = {"gpt2-124m": (1024, 32), "llama-1b": (4096, 4), "llama-8b": (8192, 1)}
"""Preset -> tokens of a sequence, sequences of a step."""
STEPS = 40
WARM_UP = 10


def words(preset: str, *, text: Path, folder: Path) -> list[str]:
    """The command line after `python`."""
    length, samples = SIZES[preset]
    settings = {
        "precision": "bf16",
        "steps": STEPS,
        "global_batch_size": samples,
        "log_every_steps": 1,
        "data.sequence_length": length,
        "data.source": text,
        "metrics.folder": folder,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["-m", "drumline_trainer", "--preset", preset, *sets]


def rows(text: Path) -> list[Row]:
    """A row for each preset, on a GPU; else say how to get them."""
    if not torch.cuda.is_available():
        print("not run, as there is no GPU; on one:")
        for preset in SIZES:
            line = " ".join(words(preset, text=Path("TEXT"), folder=Path("FOLDER")))
            print(f"  python {line}")
        return []
    return [row for preset in SIZES for row in _measured(preset, text)]


def _measured(preset: str, text: Path) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *words(preset, text=text, folder=Path(folder))]
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "steps.jsonl").read_text().splitlines()[WARM_UP:]
    records = [json.loads(line) for line in lines]
    rate = median(record["tokens_per_second"] for record in records)
    made = [Row(name=f"{preset}, bf16, one GPU", value=rate, unit="tokens/s")]
    shares = [record["mfu"] for record in records if record.get("mfu") is not None]
    if shares:  # not of every GPU it is known what it could do
        made.append(Row(name="  its MFU", value=100 * median(shares), unit="%"))
    return made
