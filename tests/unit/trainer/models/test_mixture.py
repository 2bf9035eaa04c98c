from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_trainer.models.mixture import (
    Dispatch,
    MixtureOfExperts,
    balance_loss,
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
    set_loss_scale(model, 0.25)
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
        set_loss_scale(model, scale)
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
