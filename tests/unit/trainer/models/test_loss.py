"""The loss by rows is the one that torch computes from whole logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drumline_contract.shapes import loss_rows
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.models.loss import token_losses_sum

TOKENS, WORDS = 37, 101


def whole(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="sum")


def example(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (3 * torch.randn(TOKENS, WORDS)).to(dtype).view(1, TOKENS, WORDS)
    targets = torch.randint(0, WORDS, (1, TOKENS))
    targets[0, ::5] = IGNORED
    return logits.requires_grad_(), targets


@pytest.mark.parametrize("rows", [1, 8, TOKENS, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_slopes_do_not_depend_on_the_rows_at_a_time(
    dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_rows, "CHUNK_ELEMENTS", rows * WORDS)
    logits, targets = example(dtype)
    expected = whole(logits, targets)
    (slopes,) = torch.autograd.grad(0.25 * expected, logits)
    made = token_losses_sum(logits, targets)
    (own,) = torch.autograd.grad(0.25 * made, logits)
    torch.testing.assert_close(made, expected, rtol=1e-6, atol=0)
    # bf16: the same fp32 number rounded, which may lie between two neighbours
    tolerance = 1e-6 if dtype is torch.float32 else 2**-8
    torch.testing.assert_close(own, slopes, rtol=tolerance, atol=1e-7)
    assert own.dtype is dtype


class LargestFloat(TorchDispatchMode):
    """Remembers the largest fp32 tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype is torch.float32:
            self.elements = max(self.elements, made.numel())
        return made


def test_logits_are_never_whole_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_rows, "CHUNK_ELEMENTS", 4 * WORDS)
    logits, targets = example(torch.bfloat16)
    with LargestFloat() as largest:
        token_losses_sum(logits, targets).backward()
    assert 0 < largest.elements <= 4 * WORDS


class Exponentials(TorchDispatchMode):
    """Counts the elements whose exponential is computed."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func.overloadpacket in (torch.ops.aten.exp, torch.ops.aten.exp_):
            self.elements += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "times"), [(TOKENS, 1), (4, 2)])
def test_exponentials_of_a_single_fp32_chunk_are_computed_once(
    rows: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_rows, "CHUNK_ELEMENTS", rows * WORDS)
    logits, targets = example(torch.float32)
    with Exponentials() as counted:
        token_losses_sum(logits, targets).backward()
    assert counted.elements == times * TOKENS * WORDS


def test_images_have_one_target_each() -> None:
    logits, labels = torch.randn(5, 10), torch.arange(5)
    torch.testing.assert_close(token_losses_sum(logits, labels), whole(logits, labels))
