"""The same losses whatever the device does beside them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drumline_contract.config import merge
from tests.gloo.stored import same_bits, whole_tensors
from tools.bench.report import Row
from tools.gpu.runs import Bench, CheckFailedError, Trained

FP32_APART = 1e-4
BF16_APART = 2e-2
"""Of losses of a run whose products are rounded at other places."""
LEARNS_APART = 5e-2
COMPILED_APART = 1e-5
COMPILED_BF16_APART = 1e-2

OFFLOADS: dict[str, dict[str, Any]] = {
    "activations to the host": {"memory": {"offload_activations": "cpu"}},
    "optimizer to the host": {"memory": {"offload_optimizer": "cpu"}},
    "recompute full": {"memory": {"recompute": "full"}},
    "recompute selective": {"memory": {"recompute": "selective"}},
    "saves every second step": {"checkpoint": {"every_steps": 2}},
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp, one rank": (1, {"data_parallel": "fsdp"}),
    "fsdp": (0, {"data_parallel": "fsdp"}),
    "ddp": (0, {"data_parallel": "ddp"}),
    "zero1": (0, {"data_parallel": "zero1"}),
    "zero2": (0, {"data_parallel": "zero2"}),
    "hsdp 2 x 2": (4, {"data_parallel": "fsdp", "replicate": 2}),
    "tensor 2": (2, {"tensor": 2}),
    "pipeline 2, 1f1b": (2, {"pipeline": 2}),
    "pipeline 2, interleaved": (
        2,
        {"pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2},
    ),
    "context 2": (2, {"context": 2}),
}
"""Ranks, 0 for all; parallelism. On processors there are always enough."""
DENSE: dict[str, Any] = {"model": {"layers": 4}, "micro_batch_size": 1}
"""Stages for all ranks, and micro-batches to fill them."""
EXPERTS: dict[str, Any] = {"model": {"experts": 4}}
EXPERT_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "expert 2": (2, {"expert": 2}),
    "expert 2, tensor 2": (4, {"expert": 2, "tensor": 2}),
}


SMALLEST: dict[str, Any] = {
    "model": {"layers": 1, "hidden_size": 64, "ffn_size": 128, "heads": 2, "kv_heads": 1},
    "data": {"sequence_length": 64},
    "steps": 2,
}


def same_as_processors(bench: Bench) -> Iterator[Row]:
    """A few steps of a small model in fp32, here and without a GPU."""
    small: dict[str, Any] = {
        "model": {"layers": 2, "hidden_size": 128, "ffn_size": 352, "heads": 4, "kv_heads": 2},
        "data": {"sequence_length": 64},
        "precision": "fp32",
        "steps": 8,
    }
    apart = bench.train(small).apart(bench.train(small, device="cpu"))
    yield _apart("fp32 beside processors", apart, FP32_APART)


def same_bits_again(bench: Bench) -> Iterator[Row]:
    """Twice, then killed after a checkpoint and resumed."""
    saved = {"checkpoint": {"every_steps": 4}}
    folders = [bench.new_folder() for _ in range(3)]
    first, second = (bench.train(saved, checkpoints=folder) for folder in folders[:2])
    yield _bits("twice", first, second)
    bench.train_and_kill(saved, ranks=1, checkpoints=folders[2], after="step 9/")
    resumed = bench.train(saved, checkpoints=folders[2])
    begins = min(resumed.losses)
    if begins == 1:
        raise CheckFailedError("the run that was killed has left no checkpoint")
    tail = Trained(
        losses={step: loss for step, loss in first.losses.items() if step >= begins}, steps=[]
    )
    yield _bits(f"resumed at step {begins - 1}", tail, resumed)
    same = same_bits(*(whole_tensors(_newest(folder)) for folder in (folders[0], folders[2])))
    yield Row(name="weights and moments in the last checkpoint", value=same, unit="", met=same)
    again = same_bits(*(whole_tensors(_newest(folder)) for folder in folders[:2]))
    yield Row(name="weights and moments, twice", value=again, unit="", met=again)
    if bench.machine.ranks > 1:
        sharded = {"parallelism": {"data_parallel": "fsdp"}}
        runs = (bench.train(sharded, ranks=bench.machine.ranks) for _ in range(2))
        yield _bits(f"fsdp over {bench.machine.ranks} ranks, twice", *runs)


def streams_change_nothing(bench: Bench) -> Iterator[Row]:
    """What runs on streams of its own, beside the same run without it."""
    plain = bench.train()
    for name, change in OFFLOADS.items():
        folder = bench.new_folder() if "checkpoint" in change else None
        yield _bits(name, plain, bench.train(change, checkpoints=folder))
    sharded = {"parallelism": {"data_parallel": "fsdp"}}
    offloaded = bench.train(sharded, {"memory": {"offload_parameters": "cpu"}})
    # the host's own AdamW rounds differently
    yield _apart("parameters to the host, fsdp", offloaded.apart(bench.train(sharded)), BF16_APART)


def documents(bench: Bench) -> Iterator[Row]:
    """The kernel takes low precision alone, so it is compared with fp32."""
    separate = {"data": {"packing": "separate"}}
    first, second = bench.train(separate), bench.train(separate)
    yield _bits("documents apart, twice", first, second)
    exact = bench.train(separate, {"precision": "fp32"})
    yield _apart("documents apart, bf16 beside fp32", first.apart(exact), BF16_APART)
    changed = first.apart(bench.train())
    yield Row(name="they are apart: beside one text", value=changed, unit="apart", met=changed > 0)


def fp8_learns(bench: Bench) -> Iterator[Row]:
    """Beside bf16; the speed of both."""
    longer = {"steps": 30}
    plain = bench.train(longer)
    for scaling in ("tensorwise", "rowwise"):
        made = bench.train(longer, {"fp8": True, "fp8_scaling": scaling})
        yield _apart(f"fp8 {scaling} beside bf16", made.apart(plain), LEARNS_APART)
        if bench.machine.on_gpu:
            ratio = _seconds(plain) / _seconds(made)
            yield Row(name=f"fp8 {scaling}: steps beside bf16's", value=ratio, unit="x")


def same_over_ranks(bench: Bench) -> Iterator[Row]:
    """Each layout that has enough GPUs, beside one rank."""
    for model, layouts in ((DENSE, LAYOUTS), (EXPERTS, EXPERT_LAYOUTS)):
        exact = merge({"precision": "fp32"}, model)
        plain = bench.train(exact)
        for name, (wanted, parallelism) in layouts.items():
            ranks = wanted or bench.machine.ranks
            missing = bench.machine.on_gpu and ranks > bench.machine.ranks
            if missing or (ranks == 1 and wanted != 1):
                continue
            made = bench.train(exact, {"parallelism": parallelism}, ranks=ranks)
            yield _apart(f"{name}, ranks: {ranks}", made.apart(plain), FP32_APART)


def sanitized(bench: Bench) -> Iterator[Row]:
    """Two steps of the smallest model under NVIDIA's sanitizer, where it is installed."""
    tool = shutil.which("compute-sanitizer") if bench.machine.on_gpu else None
    if tool is None:
        yield Row(name="compute-sanitizer is not here; errors", value=0, unit="not looked for")
        return
    watched = (tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "99")
    bench.train(SMALLEST, under=watched)
    yield Row(name="memcheck: errors", value=0, unit="", goal="0", met=True)


def compiled_blocks(bench: Bench) -> Iterator[Row]:
    """Compiled layers, in fp32 beside eager ones; in bf16 how much faster."""
    exact: dict[str, Any] = {"precision": "fp32"}
    compiled: dict[str, Any] = {"compile": "blocks"}
    eager, made = bench.train(exact), bench.train(exact, compiled)
    yield _apart("compiled beside eager, fp32", made.apart(eager), COMPILED_APART)
    if not bench.machine.on_gpu:
        return
    longer = {"steps": 100}
    plain, fused = bench.train(longer), bench.train(longer, compiled)
    yield _apart("compiled beside eager, bf16, 100 steps", fused.apart(plain), COMPILED_BF16_APART)
    ratio = _seconds(plain) / _seconds(fused)
    yield Row(name="a compiled step beside an eager one", value=ratio, unit="x")


def price_of_determinism(bench: Bench) -> Iterator[Row]:
    """The same run with the fastest kernels: its losses differ by rounding alone."""
    longer = {"steps": 30}
    plain, fastest = bench.train(longer), bench.train(longer, {"deterministic": False})
    yield _apart("fastest kernels", fastest.apart(plain), BF16_APART)
    if bench.machine.on_gpu:
        ratio = _seconds(plain) / _seconds(fastest)
        yield Row(name="a deterministic step beside a free one", value=ratio, unit="x")


def _seconds(trained: Trained) -> float:
    rows = sorted(row["step_seconds"] for row in trained.steps[len(trained.steps) // 3 :])
    return rows[len(rows) // 2]


def _newest(folder: Path) -> Path:
    return max(folder.glob("step-????????"))


def _bits(name: str, left: Trained, right: Trained) -> Row:
    same = left.bits == right.bits
    if not same:
        apart = left.apart(right)
        return Row(name=name, value=apart, unit="apart", goal="the same bits", met=False)
    return Row(name=name, value=len(left.losses), unit="losses", goal="the same bits", met=True)


def _apart(name: str, value: float, most: float) -> Row:
    return Row(name=name, value=value, unit="apart", goal=f"<= {most:g}", met=value <= most)
