"""The kernels that only a GPU has, each beside the same arithmetic written out in fp32.

Whole runs would hide one that was never taken: here each says whether it was. In a process of its
own, as no parent of ranks may have used CUDA; on processors the torch that is there does what it
can.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from drumline_contract.config import Fp8Scaling, ModelConfig
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.mixture import Experts
from drumline_trainer.models.replaceable import CoreAttention
from drumline_trainer.numerics import fp8
from tools.bench.report import Row
from tools.gpu.machine import ROOT
from tools.gpu.runs import Bench, CheckFailedError

BF16_APART = 2e-2
"""Of a result's norm: bf16 has 8 bits, and sums of some hundred products are rounded once."""
SECONDS = 120
TOKENS, SIZE, EXPERTS = 96, 64, 4
ENDS = (0, 5, 40, 41, 96)
"""Of documents, one of a single token."""
Kernel = Callable[[torch.device], tuple[float, bool]]
"""How far results and gradients are off, and whether the GPU's own kernel was taken."""


def beside_plain_arithmetic(bench: Bench) -> Iterator[Row]:
    """A row for each kernel."""
    device = "cuda" if bench.machine.on_gpu else "cpu"
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu.kernels", device],
        cwd=ROOT,
        env=bench.machine.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        raise CheckFailedError(f"exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    for name, (apart, taken) in json.loads(done.stdout.splitlines()[-1]).items():
        goal = f"<= {BF16_APART:g}"
        yield Row(name=name, value=apart, unit="apart", goal=goal, met=apart <= BF16_APART)
        if bench.machine.on_gpu:  # fp8 came with capability 8.9
            met = True if taken else None if name.startswith("fp8") else False
            yield Row(name=f"{name}: by its kernel", value=taken, unit="", met=met)


def _attention_in_documents(device: torch.device) -> tuple[float, bool]:
    shape = (1, 4, TOKENS, SIZE)
    q, k, v = (_values(shape, number, device) for number in (1, 2, 3))
    positions = np.concatenate([np.arange(b - a) for a, b in _runs()])[None].astype(np.int32)
    ids = np.repeat(np.arange(len(ENDS) - 1), [b - a for a, b in _runs()])[None].astype(np.int32)
    documents = Documents.of(ids, positions).to(device)
    attention = CoreAttention(causal=True)
    low = [each.bfloat16().requires_grad_() for each in (q, k, v)]
    got = attention(*low, documents)
    exact = [each.bfloat16().double().requires_grad_() for each in (q, k, v)]
    expected = attention(*exact, documents)  # fp64 has no such kernel
    return _apart(got, expected, low, exact), device.type == "cuda"


def _grouped_products(device: torch.device) -> tuple[float, bool]:
    config = ModelConfig(experts=EXPERTS, hidden_size=SIZE, ffn_size=2 * SIZE)
    low = Experts(config).to(device=device, dtype=torch.bfloat16)
    for number, weight in enumerate(low.parameters()):
        weight.data.copy_(_values(tuple(weight.shape), number, device) / 8)
    exact = Experts(config).to(device=device, dtype=torch.float64)
    exact.load_state_dict(low.state_dict())
    counts = torch.tensor([b - a for a, b in _runs()], device=device)
    rows = _values((TOKENS, SIZE), 9, device).bfloat16()
    inputs = [rows.clone().requires_grad_(), rows.double().requires_grad_()]
    apart = _apart(
        low(inputs[0], counts),
        exact(inputs[1], counts),
        [inputs[0], *low.parameters()],
        [inputs[1], *exact.parameters()],
    )
    return apart, True


def _fp8_products(scaling: Fp8Scaling) -> Kernel:
    def compare(device: torch.device) -> tuple[float, bool]:
        left, right = (_values((TOKENS, SIZE), number, device).bfloat16() for number in (4, 5))
        if scaling is Fp8Scaling.ROWWISE:
            a, b = fp8.scaled_by_rows(left), fp8.scaled_by_columns(right.mT)
        else:
            a, b = fp8.scaled(left, fp8.BACKWARD), fp8.scaled(right, fp8.FORWARD).mT
        got = fp8.product(a, b, dtype=torch.bfloat16)
        expected = (a.values.double() * a.scale) @ (b.values.double() * b.scale)
        return _apart(got, expected, [], []), fp8.has_fp8(device)

    return compare


KERNELS: dict[str, Kernel] = {
    "attention within documents": _attention_in_documents,
    "grouped products of experts": _grouped_products,
    "fp8, a scale a matrix": _fp8_products(Fp8Scaling.TENSORWISE),
    "fp8, a scale a row": _fp8_products(Fp8Scaling.ROWWISE),
}


def _runs() -> list[tuple[int, int]]:
    return list(pairwise(ENDS))


def _values(shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _apart(got: Tensor, expected: Tensor, inputs: list[Tensor], exact: list[Tensor]) -> float:
    """The largest of the result and of all gradients."""
    pairs = [(got, expected)]
    if inputs:
        slopes = _values(tuple(got.shape), 7, got.device)
        got.backward(slopes.to(got.dtype))
        expected.backward(slopes.to(got.dtype).double())
        pairs += [(i.grad, e.grad) for i, e in zip(inputs, exact, strict=True)]  # type: ignore[misc]
    return max(float((a.double() - b).detach().norm() / b.detach().norm()) for a, b in pairs)


if __name__ == "__main__":
    place = torch.device(sys.argv[1])
    print(json.dumps({name: kernel(place) for name, kernel in KERNELS.items()}))
