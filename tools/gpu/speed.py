"""Memory and speed of models of published sizes, on all GPUs of the machine.

What is measured is the fastest settings that fit: DDP, then FSDP, then FSDP with every activation
computed again. Where a single GPU holds none of them, layers are left out until it does; such a
rate says something of the kernels, and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from drumline_contract.config import TrainerConfig, merge
from drumline_contract.config.presets import MODEL_PRESETS
from drumline_contract.layout_validation import validated_layout
from drumline_planner.machine import SeenDevice, machine
from drumline_planner.memory import CONTEXT_BYTES, GROUP_BYTES, Bill, memory_bill
from drumline_planner.setup import TrainingSetup
from tools.bench.report import Row
from tools.gpu.runs import Bench, CheckFailedError, Trained

BILL_APART = 0.1
"""Libraries of products and NCCL have buffers of their own, and blocks of the allocator gaps; the
formulas alone are held within 3 % (tools/bench/constructions.py)."""
SIZES: dict[str, tuple[int, int]] = {
    "gpt2-124m": (1024, 32),
    "llama-1b": (4096, 4),
    "llama-8b": (8192, 1),
}
"""Preset -> tokens of a sequence, sequences of a step for each GPU."""
STEPS = 30
WARM_UP = 10
GOALS = {
    "gpt2-124m": (463_000, "llm.c on an H100, GitHub karpathy/llm.c discussion 481"),
    "llama-8b": (6_700, "torchtitan on 8 H100, a GPU, with compile"),
}
"""Tokens a second of each H100, for compiled layers and free kernels, as those runs had them."""
WAYS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled, kernels free": {"compile": "blocks", "deterministic": False},
}
FSDP = {"parallelism": {"data_parallel": "fsdp"}}
FASTEST_FIRST: dict[str, dict[str, Any]] = {
    "ddp": {"parallelism": {"data_parallel": "ddp"}},
    "fsdp": FSDP,
    "fsdp, recompute full": {**FSDP, "memory": {"recompute": "full"}},
}
SMALLEST = {"layers": 2, "hidden_size": 64, "ffn_size": 128, "heads": 2, "kv_heads": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Settings under which a model fits the GPUs that are here."""

    words: str
    settings: dict[str, Any]
    whole: bool
    """All its layers."""


def peak_beside_the_bill(bench: Bench) -> Iterator[Row]:
    """What the allocator held at most beside what the planner says of the same run."""
    variants: dict[str, tuple[int, dict[str, Any]]] = {
        "plain": (1, {}),
        "recompute full": (1, {"memory": {"recompute": "full"}}),
        "fsdp": (bench.machine.ranks, FSDP),
    }
    for name, (ranks, change) in variants.items():
        settings = {**_settings(bench, "llama-1b", ranks=ranks, steps=4), **change}
        made, bill = bench.train(settings, ranks=ranks), _bill(bench, settings, ranks=ranks)
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
    """Tokens a second of each GPU, and MFU."""
    for preset in SIZES:
        fitting = fitting_settings(bench, preset)
        for way, changes in WAYS.items():
            made = bench.train(fitting.settings, changes, ranks=bench.machine.ranks)
            yield from _speed(bench, preset, way, fitting=fitting, made=made)


def fitting_settings(bench: Bench, preset: str) -> Fitting:
    """The fastest that fit, or those of the largest part of the model that fits this GPU.

    Raises:
        CheckFailedError: not even one layer fits.
    """
    ranks = bench.machine.ranks
    settings = _settings(bench, preset, ranks=ranks, steps=STEPS)
    all_layers = layers = TrainerConfig.from_dict(bench.config(settings)).model.layers
    while layers:
        part = merge(settings, {"model": {"layers": layers}})
        for words, change in FASTEST_FIRST.items():
            fitting = merge(part, change)
            if not bench.machine.on_gpu or _bill(bench, fitting, ranks=ranks).fits:
                whole = layers == all_layers
                part_words = "" if whole else f", {layers} of {all_layers} layers"
                return Fitting(words=words + part_words, settings=fitting, whole=whole)
        layers //= 2
    raise CheckFailedError(f"{preset} does not fit this GPU with one layer")


def _speed(
    bench: Bench, preset: str, way: str, *, fitting: Fitting, made: Trained
) -> Iterator[Row]:
    rows = made.steps[WARM_UP:]
    rate = median(row["tokens_per_second"] for row in rows) / bench.machine.ranks
    goal, source = GOALS.get(preset, (0, "")) if WAYS[way] and fitting.whole else (0, "")
    judged = bool(goal) and any(gpu in bench.machine.name for gpu in ("H100", "H200"))
    name = f"{preset}, {fitting.words}, {way}"
    yield Row(
        name=f"{name}, bf16, each of {bench.machine.ranks}",
        value=rate,
        unit="tokens/s",
        goal=f">= {goal:,}" if judged else "",
        met=rate >= goal if judged else None,
        source=source or "measured in this run",
    )
    shares = [row["mfu"] for row in rows if row.get("mfu") is not None]
    if shares:  # not of every GPU it is known what it could do
        yield Row(name=f"{name}: MFU", value=100 * median(shares), unit="%")


def _settings(bench: Bench, preset: str, *, ranks: int, steps: int) -> dict[str, Any]:
    length, samples = SIZES[preset] if bench.machine.on_gpu else (32, 4)
    model = MODEL_PRESETS[preset]
    shape: dict[str, Any] = TrainerConfig(model=model).written().get("model", {})
    if not bench.machine.on_gpu:
        shape = {**shape, **SMALLEST, "vocab_size": 256}
    return {
        "model": shape,
        "data": {"sequence_length": length},
        "global_batch_size": samples * ranks,
        "steps": steps,
    }


def _bill(bench: Bench, settings: Mapping[str, Any], *, ranks: int) -> Bill:
    config = TrainerConfig.from_dict(bench.config(settings))
    seen = SeenDevice(
        name=bench.machine.name if bench.machine.on_gpu else "",
        memory_bytes=bench.machine.memory_bytes,
    )
    cluster = machine(config.hardware, gpus=ranks, gpus_per_node=ranks, seen=seen)
    setup = TrainingSetup.of(config, validated_layout(config, world_size=ranks))
    return memory_bill(setup, capacity=cluster.gpu.memory_bytes)
