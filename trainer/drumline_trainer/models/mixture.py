"""A mixture of experts in place of a layer's feed-forward (Shazeer et al. 2017, Qwen 3).

The router's softmax chooses each token's K experts, and their shares are normalized to 1; shared
experts see every token. No token is ever dropped. `model.routing` has DeepSeek's variants: experts
of a token's best groups alone, and scores of each expert for itself with a correction that chooses.
Corrections are fp32 whatever the model computes in, and no gradient moves them
(`data_parallel.constants`); what may is `tokens_seen`.

The loss that keeps the experts in balance (DeepSeek-V3, equation 17) is of each sequence alone and
summed over sequences, weighted by their length: so every way to divide a batch gives the same
gradient. With documents (`models.documents`) each is a sequence, and padding is of none: neither
the length of the windows nor what else lies in them counts. The loss never appears in the logits or
the loss of tokens: an autograd function adds its gradient to the router's as the backward pass
comes by. For that it must be told by what it is multiplied (`set_loss_scale`): 1 / tokens of the
global batch, learned or not, and what fp16 asks for. Corrections are moved by the same tokens.

Two seams: `dispatch` brings rows to the experts that are elsewhere, `sequence_counts` sums over the
ranks that hold other tokens of the same sequences.

Shapes: B batch, S sequence, T = B·S tokens, D hidden, F feed-forward, X experts, K experts per
token, R = T·K rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_contract.config.routing import RouterScores, Routing
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.feed_forward import GatedFeedForward, gated

Times = Callable[[Tensor, Tensor], Tensor]
"""Rows by a matrix of each expert; see `by_expert`."""


class Experts(nn.Module):
    """A gated feed-forward per expert, the weights of all of them in three tensors; biases too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        # Three tensors for all experts: one grouped product reads each, and the expert axis cuts
        # them along dimension 0.
        wide = (config.experts, config.features_per_expert, config.hidden_size)
        # Rows are output features as in `nn.Linear`, so a checkpoint's expert is loaded without a
        # transposition.
        self.gate = nn.Parameter(torch.empty(wide))
        self.up = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(wide[0], wide[2], wide[1]))
        biases = (
            [nn.Parameter(torch.empty(wide[0], size)) for size in (wide[1], wide[1], wide[2])]
            if config.expert_bias
            else (None, None, None)
        )
        self.gate_bias, self.up_bias, self.down_bias = biases

    def forward(self, rows_RD: Tensor, counts_X: Tensor) -> Tensor:
        """Apply experts to rows [R, D], sorted by expert. Expert 0 has counts[0] rows."""
        # The choice of kernel holds for all three products: rows, types and multiples of 8 are the
        # same.
        times = by_expert(rows_RD, self.gate, counts_X)
        gate_RF, up_RF = self.inner(times, rows_RD, counts_X)
        hidden_RF = self._gated(gate_RF, up_RF, counts_X)
        return self._out(self.outer(times, hidden_RF, counts_X), counts_X)

    def inner(self, times: Times, rows_RD: Tensor, counts_X: Tensor) -> tuple[Tensor, Tensor]:
        """Return gate's and up's products without biases, both of shape R F.

        Args:
            times: computes a product for each expert.
            rows_RD: rows sorted by expert [R, D].
            counts_X: rows of each expert [X].
        """
        del counts_X
        return times(rows_RD, self.gate), times(rows_RD, self.up)

    def outer(self, times: Times, hidden_RF: Tensor, counts_X: Tensor) -> Tensor:
        """Return down's product without bias, of shape R D.

        Args:
            times: computes a product for each expert.
            hidden_RF: activations of the experts [R, F].
            counts_X: rows of each expert [X].
        """
        del counts_X
        return times(hidden_RF, self.down)

    def _gated(self, gate_RF: Tensor, up_RF: Tensor, counts_X: Tensor) -> Tensor:
        if self.gate_bias is not None and self.up_bias is not None:
            # The bias of an expert differs by row. A product over all rows cannot add it.
            gate_RF = gate_RF + _of_rows(self.gate_bias, counts_X, gate_RF)
            up_RF = up_RF + _of_rows(self.up_bias, counts_X, up_RF)
        return gated(gate_RF, up_RF, self.activation)

    def _out(self, rows_RD: Tensor, counts_X: Tensor) -> Tensor:
        bias = self.down_bias
        return rows_RD if bias is None else rows_RD + _of_rows(bias, counts_X, rows_RD)


def by_expert(rows: Tensor, weight: Tensor, counts_X: Tensor) -> Times:
    """Return a product of rows that are sorted by expert with a matrix of each expert.

    Args:
        rows: rows with the shape and dtype of those to multiply, [T, I].
        weight: a matrix of each expert, [X, O, I].
        counts_X: rows of each expert.

    Returns:
        A function of rows and weights of such sizes.
    """
    # One kernel for all experts reads the row counts on the GPU, so the host does not wait.
    if _fits_grouped(rows, weight):
        ends_X = counts_X.cumsum(0).to(torch.int32)
        return lambda rows, weight: F.grouped_mm(rows, weight.mT, offs=ends_X)
    # `tolist` waits for the GPU. Without the grouped kernel, the host needs the sizes to split the
    # rows.
    sizes = cast("list[int]", counts_X.tolist())  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return lambda rows, weight: _by_expert(rows, weight, sizes)


def _by_expert(rows: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    """Multiply rows that are sorted by expert by their expert's matrix."""
    # An expert without rows multiplies an empty part, so its slice of the gradient is zero.
    parts = cast("tuple[Tensor, ...]", rows.split(sizes))  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return torch.cat([part @ matrix.T for part, matrix in zip(parts, weight, strict=True)])


def _of_rows(bias: Tensor, counts_X: Tensor, rows: Tensor) -> Tensor:
    """Return each row's expert's bias; the row count is known, so no GPU is waited for."""
    return bias.repeat_interleave(counts_X, dim=0, output_size=len(rows))


class Dispatch(nn.Module):
    """Dispatch to experts that are all on this rank."""

    def exchange_counts(self, counts_X: Tensor) -> Any:
        """Return the input of `forward` for `counts_X` rows for each expert."""
        return counts_X

    def forward(self, rows_RD: Tensor, announced: Any, experts: nn.Module) -> Tensor:
        """Apply the experts to rows [R, D] sorted by expert.

        Return their outputs in the same order.

        Args:
            rows_RD: rows sorted by expert [R, D].
            announced: result of the announcement of counts.
            experts: this rank's experts.
        """
        return experts(rows_RD, announced)


class MixtureOfExperts(nn.Module):
    """Router, experts, and experts that all tokens share."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.count = config.experts
        self.per_token = config.experts_per_token
        self.routing = config.routing
        self.balance_weight = config.balance_weight
        self.loss_scale: Tensor | float | None = None
        self.tokens_seen: Tensor | None = None
        """With corrections that move: how many went to each expert since the last move."""
        # GPT-OSS gives router and experts biases by the same setting.
        self.router = nn.Linear(config.hidden_size, config.experts, bias=config.expert_bias)
        # A buffer and not a parameter: no gradient moves it, and no optimizer has state for it.
        correction = torch.empty(config.experts) if config.corrects_scores else None
        self.register_buffer("correction", correction)
        self.correction: Tensor | None
        self.experts = Experts(config)
        self.shared = (
            GatedFeedForward(
                config.hidden_size,
                config.shared_experts * config.features_per_expert,
                config.activation,
            )
            if config.shared_experts
            else None
        )
        self.dispatch: Dispatch = Dispatch()
        self.sequence_counts: nn.Module = nn.Identity()

    def forward(self, x_BSD: Tensor, documents: Documents | None = None) -> Tensor:
        """Sum tokens' experts by their shares, and shared ones; [batch, sequence, hidden]."""
        # Phase 1: route. Scores are fp32 even if the model computes in bf16.
        scores_BSX = self._scores(self.router(x_BSD))
        shares_BSK, chosen_BSK = self._chosen(scores_BSX)
        # Phase 2: sort. [B, S, K] becomes R = B*S*K rows by expert. A stable sort keeps tokens in
        # order, so sums have the same bits each time.
        expert_of_R, order_R = chosen_BSK.flatten().sort(stable=True)
        counts_X = self._counts(expert_of_R)
        # The counts start to travel before the shared experts compute, and the wait happens in
        # `_through_experts`.
        announced = self.dispatch.exchange_counts(counts_X)
        self._see(counts_X, chosen_BSK, documents)
        shared_BSD = None if self.shared is None else self.shared(x_BSD)  # while counts travel
        # Phase 3: experts. Rows come back in token order, [R, D], and become [B, S, K, D].
        rows_RD = self._through_experts(x_BSD, order_R, announced)
        rows_BSKD = rows_RD.view(*chosen_BSK.shape, -1)
        # Phase 4: weighted sum. Shares are rounded to the type of the hidden states.
        out_BSD = (rows_BSKD * shares_BSK.to(x_BSD.dtype).unsqueeze(-1)).sum(dim=2)
        # Without gradients the balance loss has no effect, so evaluation skips it.
        if self.balance_weight and self.training and torch.is_grad_enabled():
            out_BSD = self._balanced(out_BSD, scores_BSX, chosen_BSK, documents)
        return out_BSD if shared_BSD is None else out_BSD + shared_BSD

    def _scores(self, products_BSX: Tensor) -> Tensor:
        if self.routing.scores is RouterScores.SIGMOID:
            # DeepSeek-V3 scores each expert for itself. The scores of a token do not add up to 1.
            return products_BSX.float().sigmoid()
        # `dtype` converts before the exponentials. A softmax in bf16 could round shares of the best
        # experts to equal values.
        return products_BSX.softmax(dim=-1, dtype=torch.float32)

    def _chosen(self, scores_BSX: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts; returns shares and numbers of experts, both [batch, sequence, chosen]."""
        routing = self.routing
        if self.correction is None and routing.groups == 1:
            # Without correction and groups, the K largest scores are both the choice and the
            # shares.
            shares_BSK, chosen_BSK = scores_BSX.topk(self.per_token, dim=-1)
        else:
            # The choice has no gradient. The correction enters the choice alone, and shares come
            # from the uncorrected scores.
            rank_BSX = scores_BSX.detach()
            rank_BSX = rank_BSX if self.correction is None else rank_BSX + self.correction
            chosen_BSK = _of_best_groups(rank_BSX, routing).topk(self.per_token, dim=-1).indices
            shares_BSK = scores_BSX.gather(-1, chosen_BSK)
        # Normalized over the chosen experts, as transformers does for `norm_topk_prob`.
        if routing.normalized:
            shares_BSK = shares_BSK / shares_BSK.sum(dim=-1, keepdim=True)
        return shares_BSK if routing.scale == 1 else shares_BSK * routing.scale, chosen_BSK

    def _see(self, counts_X: Tensor, chosen_BSK: Tensor, documents: Documents | None) -> None:
        """Count the tokens of each expert [X].

        A recomputed pass counts twice for all, so means stay.
        """
        # Only training passes count. A pass for evaluation must not move the corrections.
        if self.routing.correction_rate and self.training and torch.is_grad_enabled():
            if documents is not None:
                is_padding_BS = documents.own_numbers() == documents.runs_in_all
                # Padding goes to an expert number that does not exist, and `searchsorted` leaves it
                # out.
                of_none_BSK = chosen_BSK.masked_fill(is_padding_BS.unsqueeze(-1), self.count)
                counts_X = self._counts(of_none_BSK.flatten().sort().values)
            seen = self.tokens_seen
            self.tokens_seen = counts_X if seen is None else seen + counts_X

    def _counts(self, expert_of_R: Tensor) -> Tensor:
        # Sorted input: the position behind the last row of each expert is a cumulative count.
        every_X = torch.arange(self.count, device=expert_of_R.device)
        ends_X = torch.searchsorted(expert_of_R, every_X, right=True)  # unlike bincount: no waiting
        return ends_X.diff(prepend=ends_X.new_zeros(1))

    def _through_experts(self, x_BSD: Tensor, order_R: Tensor, announced: Any) -> Tensor:
        """Sort copies of the tokens by expert, let the experts work, put them back."""
        # `order` says which row comes first, `place` where a row went. Each is the inverse of the
        # other.
        place_R = order_R.argsort()
        # [B, S, D] becomes [R, D]: each token K times in a row, in the order of
        # `chosen_BSK.flatten()`.
        rows_RD = x_BSD.flatten(0, 1).repeat_interleave(self.per_token, dim=0)
        rows_RD = _Permuted.apply(rows_RD, order_R, place_R)
        # The collectives of the expert axis are inside. Every rank enters them, even with no rows.
        rows_RD = self.dispatch(rows_RD, announced, self.experts)
        return _Permuted.apply(rows_RD, place_R, order_R)

    def _balanced(
        self,
        out_BSD: Tensor,
        scores_BSX: Tensor,
        chosen_BSK: Tensor,
        documents: Documents | None,
    ) -> Tensor:
        if self.loss_scale is None:
            raise RuntimeError("models.mixture.set_loss_scale comes before the first forward pass")
        # Equation 17 needs scores whose sum is 1. Softmax scores have that already.
        if self.routing.scores is RouterScores.SIGMOID:
            scores_BSX = scores_BSX / scores_BSX.sum(dim=-1, keepdim=True)
        loss = balance_loss(
            scores_BSX, chosen_BSK, documents=documents, sequence_counts=self.sequence_counts
        )
        scale = self.loss_scale
        if not isinstance(scale, Tensor):
            scale = torch.full((), scale, device=loss.device)  # unlike a copy: no waiting
        return _WithGradientOf.apply(out_BSD, self.balance_weight * loss, scale)


def _of_best_groups(rank_BSX: Tensor, routing: Routing) -> Tensor:
    """Return scores [B, S, X] with -inf for experts outside of each token's best groups."""
    if routing.groups == 1:
        return rank_BSX
    rank_BSGX = cast("Tensor", rank_BSX.unflatten(-1, (routing.groups, -1)))
    # DeepSeek-V3 ranks a group by its two best experts, DeepSeek-V2 by its best one. transformers
    # does the same.
    best = 2 if routing.scores is RouterScores.SIGMOID else 1
    of_groups_BSG = rank_BSGX.topk(best, dim=-1).values.sum(dim=-1)
    groups_BSK = of_groups_BSG.topk(routing.groups_per_token, dim=-1).indices
    left_out_BSG = torch.ones_like(of_groups_BSG, dtype=torch.bool).scatter(
        -1, groups_BSK, value=False
    )
    # -inf is never among the K best, because the best groups hold at least K experts.
    return rank_BSGX.masked_fill(left_out_BSG.unsqueeze(-1), float("-inf")).flatten(-2)


def balance_loss(
    scores_BSX: Tensor,
    chosen_BSK: Tensor,
    *,
    documents: Documents | None = None,
    sequence_counts: nn.Module | None = None,
) -> Tensor:
    """Return X · Σ over experts of (share of the choices) · (mean score), summed over all tokens.

    It is S for each sequence whose experts are equally busy, and X · S / K at worst.

    Args:
        scores_BSX: the router's, whose sum over the experts is 1; may be a part of the sequences'
            tokens.
        chosen_BSK: the experts of these tokens.
        documents: each is a sequence of its own, and padding is of none.
        sequence_counts: sums choices of shape B X, or N X of N documents, over the ranks with other
            tokens of the same sequences; the losses of those ranks then add up to that of the whole
            sequences.
    """
    if documents is not None:
        return _of_documents(scores_BSX, chosen_BSK, documents, sequence_counts)
    # Without documents every row of the batch is one sequence.
    experts, per_token = scores_BSX.shape[-1], chosen_BSK.shape[-1]
    # Counts are integers and have no gradient. The gradient flows through the mean scores only.
    counts_BX = F.one_hot(chosen_BSK.flatten(1), experts).sum(dim=1)
    # Collective over the ranks with other positions of the same sequences. All of them must come
    # here.
    if sequence_counts is not None:
        counts_BX = sequence_counts(counts_BX)
    # The length is computed from the counts, because a rank may hold a part of the sequence.
    length = counts_BX[0].sum() / per_token
    frequency_BX = counts_BX * (experts / (per_token * length))
    # Scores are summed, not averaged: the mean of S scores times the length S is their sum.
    return (frequency_BX * scores_BSX.sum(dim=1)).sum()


def _of_documents(
    scores_BSX: Tensor,
    chosen_BSK: Tensor,
    documents: Documents,
    sequence_counts: nn.Module | None,
) -> Tensor:
    """Return `balance_loss` of N runs; the row after the last one is padding and does not count."""
    experts, per_token = scores_BSX.shape[-1], chosen_BSK.shape[-1]
    numbers_BS, runs = documents.own_numbers(), documents.runs_in_all
    # One index for run and expert, so that a single scatter counts both. Integer adds are exact in
    # any order.
    places_R = (numbers_BS.unsqueeze(-1) * experts + chosen_BSK).flatten()
    counts_NX = places_R.new_zeros((runs + 1) * experts).scatter_add_(
        0, places_R, torch.ones_like(places_R)
    )
    counts_NX = counts_NX.view(runs + 1, experts)
    if sequence_counts is not None:
        counts_NX = sequence_counts(counts_NX)
    # A run may have no token on these ranks. The clamp avoids 0 / 0, and its frequency is 0.
    lengths_N1 = counts_NX.sum(dim=1, keepdim=True).clamp(min=1) / per_token
    frequency_NX = counts_NX * (experts / per_token) / lengths_N1
    # The last row has the padding. It must not reward or punish an expert.
    frequency_NX[runs] = 0
    return (frequency_NX[numbers_BS] * scores_BSX).sum()


def corrections(model: nn.Module) -> Iterator[tuple[str, MixtureOfExperts]]:
    """Yield the mixtures that have a correction, with its name."""
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    for path, module in modules:
        if isinstance(module, MixtureOfExperts) and module.correction is not None:
            yield f"{path}.correction", module


def mixtures_of(model: nn.Module) -> Iterator[MixtureOfExperts]:
    """Yield the mixtures of experts in a model."""
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))


def set_loss_scale(mixtures: Iterable[MixtureOfExperts], scale: Tensor | float) -> None:
    """Set the factor by which the sum of the tokens' losses is multiplied before backward."""
    for mixture in mixtures:
        mixture.loss_scale = scale


class _WithGradientOf(torch.autograd.Function):
    """x itself; going back, `loss` receives the gradient `scale` as if it had been added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: Tensor) -> Tensor:
        del loss
        ctx.save_for_backward(scale)
        # A view: autograd treats an input that is returned unchanged as a special case.
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (scale,) = ctx.saved_tensors
        # The gradient of `loss` is the scale itself, and does not depend on what follows the layer.
        return gradients[0], scale, None


class _Permuted(torch.autograd.Function):
    """Rows in another order; going back they are only put back, where indexing would add them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return x[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        # A permutation is inverted by gathering. The backward of indexing would add rows into
        # zeros.
        return gradients[0][place], None, None


def _fits_grouped(rows_RD: Tensor, gate_XFD: Tensor) -> bool:
    """Return whether one kernel can compute all experts: bf16 rows, multiples of 16 bytes."""
    # The grouped kernel of torch takes bf16 alone. Strides must be multiples of 16 bytes, which are
    # 8 values.
    rows_fit = len(rows_RD) > 0 and rows_RD.dtype == gate_XFD.dtype == torch.bfloat16
    return rows_fit and gate_XFD.shape[1] % 8 == 0 and gate_XFD.shape[2] % 8 == 0
