"""Memory and speed of models of published sizes on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from drumline_trainer.config import TrainerConfig
from drumline_trainer.config.presets import MODEL_PRESETS
from drumline_trainer.layout_validation import validated_layout
from drumline_trainer.planner.machine import SeenDevice, machine
from drumline_trainer.planner.memory import CONTEXT_BYTES, GROUP_BYTES, Bill, memory_bill
from drumline_trainer.planner.setup import TrainingSetup
from tests.bench.report import Row
from tests.gpu.runs import Bench, Trained

BILL_APART = 0.1
SIZES: dict[str, tuple[int, int]] = {
    "gpt2-124m": (1024, 32),
    "llama-1b": (4096, 4),
    "llama-8b": (8192, 1),
}
"""Preset -> tokens of a sequence, sequences of a step."""
STEPS = 30
WARM_UP = 10
GOALS = {
    "gpt2-124m": (463_000, "llm.c on an H100, GitHub karpathy/llm.c discussion 481"),
    "llama-8b": (6_700, "torchtitan on 8 H100, a GPU, with compile"),
}
"""Tokens a second of one H100, for compiled layers and free kernels, as those runs had them."""
WAYS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled, kernels free": {"compile": "blocks", "deterministic": False},
}
SMALLEST = {"layers": 2, "hidden_size": 64, "ffn_size": 128, "heads": 2, "kv_heads": 1}


def peak_beside_the_bill(bench: Bench) -> Iterator[Row]:
    """What the allocator held at most beside what the planner says of the same run."""
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "recompute full": {"memory": {"recompute": "full"}},
        "fsdp": {"parallelism": {"data_parallel": "fsdp"}},
    }
    for name, change in variants.items():
        settings = {**_settings(bench, "llama-1b", steps=4), **change}
        made, bill = bench.train(settings), _bill(bench, settings)
        if not bench.machine.on_gpu:  # the process's peak has the interpreter in it
            yield Row(name=f"bill of {name}", value=bill.total / 2**20, unit="MiB")
            continue
        peak = max(row["memory"]["peak"] for row in made.steps)
        ours = bill.total - CONTEXT_BYTES - GROUP_BYTES  # the driver's, not the allocator's
        yield Row(
            name=f"llama-1b, {name}: peak beside the bill",
            value=peak / ours,
            unit="x",
            goal=f"within {BILL_APART:.0%}",
            met=abs(peak / ours - 1) <= BILL_APART,
        )


def published_sizes(bench: Bench) -> Iterator[Row]:
    """Tokens a second and MFU; a model that does not fit is left out with its bill."""
    for preset in SIZES:
        settings = _settings(bench, preset, steps=STEPS)
        needed = _bill(bench, settings).total
        if bench.machine.on_gpu and needed > bench.machine.memory_bytes:
            yield Row(name=f"{preset}: does not fit, needs", value=needed / 2**30, unit="GiB")
            continue
        for way, changes in WAYS.items():
            yield from _speed(bench, f"{preset}, {way}", bench.train(settings, changes))


def _speed(bench: Bench, name: str, made: Trained) -> Iterator[Row]:
    rows = made.steps[WARM_UP:]
    rate = median(row["tokens_per_second"] for row in rows)
    preset, _, way = name.partition(", ")
    goal, source = GOALS.get(preset, (0, "")) if WAYS[way] else (0, "")
    judged = bool(goal) and any(gpu in bench.machine.name for gpu in ("H100", "H200"))
    yield Row(
        name=f"{name}, bf16, one device",
        value=rate,
        unit="tokens/s",
        goal=f">= {goal:,}" if judged else "",
        met=rate >= goal if judged else None,
        source=source or "measured in this run",
    )
    shares = [row["mfu"] for row in rows if row.get("mfu") is not None]
    if shares:  # not of every GPU it is known what it could do
        yield Row(name=f"{name}: MFU", value=100 * median(shares), unit="%")


def _settings(bench: Bench, preset: str, *, steps: int) -> dict[str, Any]:
    length, samples = SIZES[preset] if bench.machine.on_gpu else (32, 4)
    model = MODEL_PRESETS[preset]
    shape: dict[str, Any] = TrainerConfig(model=model).written().get("model", {})
    if not bench.machine.on_gpu:
        shape = {**shape, **SMALLEST, "vocab_size": 256}
    return {
        "model": shape,
        "data": {"sequence_length": length},
        "global_batch_size": samples,
        "steps": steps,
    }


def _bill(bench: Bench, settings: Mapping[str, Any]) -> Bill:
    config = TrainerConfig.from_dict(bench.config(settings))
    seen = SeenDevice(
        name=bench.machine.name if bench.machine.on_gpu else "",
        memory_bytes=bench.machine.memory_bytes,
    )
    cluster = machine(config.hardware, gpus=1, gpus_per_node=1, seen=seen)
    setup = TrainingSetup.of(config, validated_layout(config, world_size=1))
    return memory_bill(setup, capacity=cluster.gpu.memory_bytes)
