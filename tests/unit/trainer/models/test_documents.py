"""Documents that share a window are trained on as if each were alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drumline_contract.config import Family, ModelConfig, Recompute
from drumline_contract.config.rope import RopeScaling, RopeScalingKind
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.documents import DocumentOverlap, Documents, document_overlaps
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.replaceable import CoreAttention

LENGTHS = ((5, 1, 6), (12,), (3, 9))
"""Of the documents of three windows."""
IDS = np.array([np.repeat(range(len(row)), row) for row in LENGTHS], dtype=np.int32)
POSITIONS = np.array([np.concatenate([range(n) for n in row]) for row in LENGTHS], dtype=np.int32)
DOCUMENTS = Documents.of(IDS, POSITIONS)
TOKENS = torch.randint(0, 256, (3, 13), generator=torch.Generator().manual_seed(3))
LLAMA = ModelConfig(layers=2, hidden_size=16, ffn_size=24, query_key_norm=True)
MODELS = {
    "llama, grouped": LLAMA,
    "llama, untied": replace(LLAMA, kv_heads=4, tied_embeddings=False),
    "gpt2": replace(LLAMA, family=Family.GPT2, kv_heads=4, query_key_norm=False, max_positions=12),
    "mixture": replace(LLAMA, experts=4),
    "longrope": replace(
        LLAMA,
        rope_scaling=RopeScaling(
            kind=RopeScalingKind.LONGROPE,
            factor=2.0,
            original_positions=6,
            short_factors="1,1.5",
            long_factors="1,8",
        ),
    ),
}


def built(config: ModelConfig) -> nn.Module:
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=3)
    return model.double()


def passed(model: nn.Module, logits: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients."""
    loss = token_losses_sum(logits.double(), targets)
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("name", MODELS)
def test_a_document_in_a_window_has_the_loss_and_gradients_it_has_alone(
    name: str, mode: Recompute
) -> None:
    model = built(MODELS[name])
    recompute(model, mode=mode, every=None)
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:]
    for row, runs in enumerate(DOCUMENTS.runs()):
        for run in runs:
            here = model(inputs, DOCUMENTS)[row : row + 1, run]
            alone = model(inputs[row : row + 1, run])
            mine = targets[row : row + 1, run]
            torch.testing.assert_close(
                passed(model, here, mine), passed(model, alone, mine), rtol=1e-6, atol=1e-9
            )


@pytest.mark.parametrize("name", MODELS)
def test_without_them_a_token_sees_the_document_before_its_own(name: str) -> None:
    model = built(MODELS[name])
    together, separate = (model(TOKENS[:, :-1], *given) for given in ((), (DOCUMENTS,)))
    torch.testing.assert_close(together[1], separate[1])
    assert (together[0, 5] - separate[0, 5]).abs().max() > 1e-3


def test_what_is_said_of_the_windows() -> None:
    assert DOCUMENTS.runs() == [
        [slice(0, 5), slice(5, 6), slice(6, 12)],
        [slice(0, 12)],
        [slice(0, 3), slice(3, 12)],
    ]
    assert DOCUMENTS.ends.tolist() == [0, 5, 6, 12, 24, 27, 36]
    assert DOCUMENTS.ends.dtype == torch.int32
    assert DOCUMENTS.longest == 12
    places = torch.tensor([0, 5, 11])
    assert DOCUMENTS.positions(places).tolist() == [[0, 0, 5], [0, 5, 11], [0, 2, 8]]
    assert DOCUMENTS.lengths(places).tolist() == [[5, 1, 6], [12, 12, 12], [3, 9, 9]]


def test_queries_and_keys_meet_where_they_are_of_one_document() -> None:
    keys, queries = IDS[:, :6], IDS[:, 6:]
    assert list(document_overlaps(queries, keys)) == [
        DocumentOverlap(row=1, queries=slice(0, 6), keys=slice(0, 6)),
        DocumentOverlap(row=2, queries=slice(0, 6), keys=slice(3, 6)),
    ]
    seen = IDS[:, :, None] == IDS[:, None]
    result = np.zeros_like(seen)
    for overlap in document_overlaps(IDS, IDS):
        result[overlap.row, overlap.queries, overlap.keys] = True
    assert (result == seen).all()


def test_a_gpu_s_attention_takes_all_documents_at_once() -> None:
    """Shapes alone: tensors on meta have no values."""
    q, k, v = (
        torch.empty(3, heads, 12, 8, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2)
    )
    out = CoreAttention(causal=True).varlen(q, k, v, DOCUMENTS.to(torch.device("meta")))
    assert (out.shape, out.dtype) == (q.shape, q.dtype)


class KernelByDefinition(TorchDispatchMode):
    """What torch documents of its kernel for runs of different lengths, for each run by itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() != "torch_attn::_varlen_attn":
            return func(*args, **(kwargs or {}))
        q_THE, k_THE, v_THE, ends, ends_of_keys, longest, longest_of_keys, causal, scale, window = (
            args[:10]
        )
        assert torch.equal(ends, ends_of_keys)
        # a kernel is launched for so many queries of each run, and no more
        assert longest == longest_of_keys == int(ends.diff().max())
        left, right = window
        outs: list[Tensor] = []
        for begin, end in pairwise(ends.tolist()):
            q_HSE, k_HSE, v_HSE = (x[begin:end].transpose(0, 1) for x in (q_THE, k_THE, v_THE))
            ahead_QK = torch.arange(end - begin) - torch.arange(end - begin).unsqueeze(1)
            seen_QK = (ahead_QK <= 0) if causal or right == 0 else torch.ones_like(ahead_QK) > 0
            if left >= 0:
                seen_QK = seen_QK & (ahead_QK >= -left)
            scores_HQK = q_HSE @ k_HSE.mT * (scale or q_HSE.shape[-1] ** -0.5)
            shares_HQK = scores_HQK.masked_fill(~seen_QK, float("-inf")).softmax(-1)
            outs.append((shares_HQK @ v_HSE).transpose(0, 1))
        out_THE = torch.cat(outs)
        return out_THE, out_THE.new_zeros(q_THE.shape[1], len(q_THE)), torch.zeros(2)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 1), (True, 4), (True, 100), (False, None)]
)
def test_what_a_gpu_s_kernel_is_told_gives_attention_under_a_mask_of_documents(
    causal: bool, window: int | None, scale: float | None
) -> None:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (
        torch.randn(3, heads, 12, 8, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    )
    attention = CoreAttention(causal=causal, window=window, scale=scale)
    with torch.no_grad(), KernelByDefinition():
        by_kernel = attention.varlen(q, k, v, DOCUMENTS)
    ids, places = torch.from_numpy(IDS), torch.arange(12)
    before_QK = places.unsqueeze(1) - places
    seen_BQK = ids.unsqueeze(2) == ids.unsqueeze(1)
    if causal:
        seen_BQK = seen_BQK & (before_QK >= 0) & (before_QK < (window or 12))
    masked = nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen_BQK.unsqueeze(1), scale=scale, enable_gqa=True
    )
    torch.testing.assert_close(by_kernel, masked)
    torch.testing.assert_close(attention(q, k, v, DOCUMENTS), masked)


def test_a_gpu_s_attention_is_flash_whose_gradients_are_the_same_bits_again() -> None:
    """Torch asks these switches, and on some GPUs takes cuDNN unless it is off."""
    asked: list[tuple[bool, bool]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "varlen_attn" in func.name():
                asked.append(
                    (
                        torch.backends.cuda.flash_sdp_enabled(),
                        torch.backends.cuda.cudnn_sdp_enabled(),
                    )
                )
            return func(*args, **(kwargs or {}))

    before = torch.backends.cuda.cudnn_sdp_enabled()
    q = torch.empty(3, 4, 12, 8, dtype=torch.bfloat16, device="meta")
    with Watch():
        CoreAttention(causal=True).varlen(q, q, q, DOCUMENTS.to(torch.device("meta")))
    assert asked == [(True, False)]
    assert torch.backends.cuda.cudnn_sdp_enabled() is before
