from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_contract.config.routing import RouterScores, Routing
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.mixture import (
    Dispatch,
    MixtureOfExperts,
    balance_loss,
    corrections,
    mixtures_of,
    set_loss_scale,
)

CONFIG = ModelConfig(
    hidden_size=16,
    experts=6,
    experts_per_token=2,
    expert_ffn_size=24,
    shared_experts=1,
    balance_weight=0.5,
)
X_BSD = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1))


def mixture(config: ModelConfig = CONFIG) -> MixtureOfExperts:
    torch.manual_seed(0)
    made = MixtureOfExperts(config)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def swiglu(x_D: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    opened = gate @ x_D
    return down @ (opened * opened.sigmoid() * (up @ x_D))


def reference(model: MixtureOfExperts, x_D: Tensor) -> Tensor:
    """One token through all experts, those that are not chosen with a share of 0."""
    scores = (model.router.weight @ x_D).softmax(0)
    chosen = scores.argsort(descending=True)[:2]
    shares = scores[chosen] / scores[chosen].sum()
    experts = model.experts
    out = [swiglu(x_D, experts.gate[i], experts.up[i], experts.down[i]) for i in chosen]
    shared = swiglu(x_D, *(getattr(model.shared, n).weight for n in ("gate", "up", "down")))
    return shares[0] * out[0] + shares[1] * out[1] + shared


def test_outputs_and_gradients_equal_those_of_the_formulas_written_out() -> None:
    model = mixture().eval()
    x_TD = X_BSD.flatten(0, 1).requires_grad_()
    out_TD = model(x_TD.view(X_BSD.shape)).flatten(0, 1)
    expected = torch.stack([reference(model, x_D) for x_D in x_TD])
    torch.testing.assert_close(out_TD, expected, rtol=1e-4, atol=1e-5)

    leaves = [x_TD, *model.parameters()]
    weighted = torch.arange(out_TD.numel()).view(out_TD.shape) / out_TD.numel()
    ours = torch.autograd.grad((out_TD * weighted).sum(), leaves)
    theirs = torch.autograd.grad((expected * weighted).sum(), leaves)
    for gradient, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)


def test_one_kernel_for_all_experts_equals_one_product_each() -> None:
    experts = mixture().experts.bfloat16()
    counts_X = torch.tensor([3, 0, 5, 1, 0, 2])
    rows_RD = X_BSD.flatten(0, 1)[:11].bfloat16()
    grouped = experts(rows_RD, counts_X)
    each = experts.float()(rows_RD.float(), counts_X)
    assert grouped.dtype == torch.bfloat16
    torch.testing.assert_close(grouped.float(), each, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_an_expert_without_rows_has_a_gradient_of_zeros(kind: torch.dtype) -> None:
    experts = mixture().experts.to(kind)
    rows_RD = X_BSD.flatten(0, 1)[:5].to(kind)
    experts(rows_RD, torch.tensor([2, 0, 3, 0, 0, 0])).square().sum().backward()
    for weight in experts.parameters():
        assert weight.grad is not None
        assert [bool(grad.any()) for grad in weight.grad] == [True, False, True] + [False] * 3


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_experts_that_get_no_row_at_all_have_gradients_of_zeros(kind: torch.dtype) -> None:
    experts = mixture().experts.to(kind)
    out_RD = experts(torch.empty(0, 16, dtype=kind), torch.zeros(6, dtype=torch.int64))
    assert out_RD.shape == (0, 16)
    out_RD.sum().backward()
    assert all(torch.equal(w.grad, torch.zeros_like(w)) for w in experts.parameters())


def test_rows_go_where_dispatch_brings_them() -> None:
    model = mixture().eval()
    expected = model(X_BSD)
    seen: list[Tensor] = []

    class Elsewhere(Dispatch):
        """Experts are worked through from last to first, as another rank might."""

        def forward(self, rows_RD: Tensor, announced: Any, experts: nn.Module) -> Tensor:
            counts_X = announced
            seen.append(counts_X)
            parts = rows_RD.split(counts_X.tolist())
            only = [torch.zeros_like(counts_X) for _ in parts]
            for i, part in enumerate(parts):
                only[i][i] = len(part)
            backwards = reversed(list(zip(parts, only, strict=True)))
            return torch.cat([experts(part, counts) for part, counts in backwards][::-1])

    model.dispatch = Elsewhere()
    torch.testing.assert_close(model(X_BSD), expected)
    assert seen[0].sum() == 3 * 7 * 2


def test_the_balance_loss_reaches_the_router_s_gradient_but_not_the_output() -> None:
    model = mixture().train()
    set_loss_scale(mixtures_of(model), 0.25)
    out = model(X_BSD)
    assert torch.equal(out, model.eval()(X_BSD))
    out.sum().backward()
    injected = model.router.weight.grad

    plain = mixture().eval()
    scores = plain.router(X_BSD).softmax(-1)
    loss = plain(X_BSD).sum() + 0.25 * 0.5 * balance_loss(scores, scores.topk(2).indices)
    loss.backward()
    torch.testing.assert_close(injected, plain.router.weight.grad)


def test_the_scale_may_change_as_a_tensor_without_being_part_of_the_graph() -> None:
    gradients = []
    for scale in (torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0)):
        model = mixture().train()
        set_loss_scale(mixtures_of(model), scale)
        model(X_BSD).sum().backward()
        gradients.append(model.router.weight.grad)
    torch.testing.assert_close(gradients[2] - gradients[1], gradients[1] - gradients[0])
    assert (gradients[1] - gradients[0]).abs().max() > 1e-3


def test_training_without_a_scale_is_refused() -> None:
    with pytest.raises(RuntimeError, match="set_loss_scale"):
        mixture().train()(X_BSD)


def scores_and_choices() -> tuple[Tensor, Tensor]:
    scores = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(2)).softmax(-1)
    return scores, scores.topk(2).indices


def test_the_balance_loss_is_a_sum_over_sequences() -> None:
    scores, chosen = scores_and_choices()
    parts = [balance_loss(scores[i : i + 1], chosen[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(sum(parts), balance_loss(scores, chosen))


def test_ranks_with_parts_of_the_sequences_add_up_to_the_whole() -> None:
    scores, chosen = scores_and_choices()
    counts = nn.functional.one_hot(chosen.flatten(1), 5).sum(1)

    class OfAllRanks(nn.Module):
        def forward(self, counts_BX: Tensor) -> Tensor:
            return torch.zeros_like(counts_BX) + counts

    parts = [
        balance_loss(scores[:, s], chosen[:, s], sequence_counts=OfAllRanks())
        for s in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(parts[0] + parts[1], balance_loss(scores, chosen))


def test_the_balance_loss_is_least_where_all_experts_are_equally_busy() -> None:
    even = torch.full((1, 6, 3), 1 / 3)
    assert balance_loss(even, torch.arange(6).view(1, 6, 1) % 3) == pytest.approx(6)
    float_a = nn.functional.one_hot(torch.zeros(1, 6, dtype=torch.int64), 3).float()
    assert balance_loss(float_a, torch.zeros(1, 6, 1, dtype=torch.int64)) == pytest.approx(18)


def laid_out(lengths: list[list[int]], *, window: int) -> tuple[Tensor, Tensor, Documents]:
    """Tokens and targets of documents whose words follow from their lengths, and padding."""
    shape = (len(lengths), window)
    tokens, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORED)
    ids, positions = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    filled = np.array([sum(sizes) for sizes in lengths], dtype=np.int32)
    for row, sizes in enumerate(lengths):
        at = 0
        for number, size in enumerate(sizes):
            here = slice(at, at + size)
            tokens[row, here] = torch.arange(size) * 7 % 50 + size
            targets[row, here] = torch.arange(size) * 5 % 50
            ids[row, here], positions[row, here] = number, np.arange(size)
            at += size
        ids[row, at:], positions[row, at:] = len(sizes), np.arange(window - at)
    return tokens, targets, Documents.of(ids, positions, filled_B=filled)


def learned_in(
    lengths: list[list[int]], *, window: int, balance_alone: bool = False
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Gradients of one step, and what each mixture saw; or those of the balance alone."""
    config = replace(
        CONFIG,
        layers=2,
        heads=2,
        kv_heads=1,
        ffn_size=32,
        vocab_size=64,
        routing=Routing(scores=RouterScores.SIGMOID, correction_rate=0.1),
    )
    model = Llama(config)
    initialize(model, seed=3)
    tokens, targets, documents = laid_out(lengths, window=window)
    set_loss_scale(mixtures_of(model), 1 / sum(map(sum, lengths)))
    logits = model(tokens, documents)
    loss = token_losses_sum(logits, targets) if not balance_alone else 0 * logits.sum()
    (loss / 9).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    seen = [mixture.tokens_seen for _, mixture in corrections(model)]
    return {name: grad for name, grad in gradients.items() if grad is not None}, seen


@pytest.mark.parametrize("balance_alone", [False, True])
def test_what_a_router_learns_does_not_depend_on_windows_and_padding(
    *, balance_alone: bool
) -> None:
    lengths = [[5, 4], [9], [2]]
    wanted, seen = learned_in(lengths, window=9, balance_alone=balance_alone)
    assert all(int(counts.sum()) == 20 * 2 for counts in seen)
    assert max(gradient.abs().max() for gradient in wanted.values()) > 1e-4
    for other, window in (([[5], [4], [9], [2]], 16), ([[9, 2, 4, 5]], 40)):
        gradients, counts = learned_in(other, window=window, balance_alone=balance_alone)
        for name, gradient in wanted.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-7, msg=name)
        assert all(map(torch.equal, counts, seen))


def test_documents_are_sequences_of_their_own_and_padding_is_of_none() -> None:
    scores, chosen = scores_and_choices()
    _, _, documents = laid_out([[2, 3], [6], [4], [1, 1, 1]], window=6)
    runs = [(0, 0, 2), (0, 2, 5), (1, 0, 6), (2, 0, 4), (3, 0, 1), (3, 1, 2), (3, 2, 3)]
    expected = sum(balance_loss(scores[[b], i:j], chosen[[b], i:j]) for b, i, j in runs)
    torch.testing.assert_close(balance_loss(scores, chosen, documents=documents), expected)
    parts = [
        balance_loss(
            scores[:, places],
            chosen[:, places],
            documents=documents.at(places),
            sequence_counts=_Whole(documents, chosen),
        )
        for places in (torch.tensor([0, 5]), torch.tensor([1, 2, 3, 4]))
    ]
    torch.testing.assert_close(parts[0] + parts[1], expected)


class _Whole(nn.Module):
    """What ranks that share the sequences sum up."""

    def __init__(self, documents: Documents, chosen: Tensor) -> None:
        super().__init__()
        self.numbers, self.chosen = documents.numbers, chosen

    def forward(self, counts_NX: Tensor) -> Tensor:
        whole = torch.zeros_like(counts_NX)
        for number, experts in zip(self.numbers.flatten(), self.chosen.flatten(0, 1), strict=True):
            whole[number, experts] += 1
        return whole
