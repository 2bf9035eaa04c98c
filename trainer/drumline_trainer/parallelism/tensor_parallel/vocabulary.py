"""The vocabulary cut over the tensor axis: embedding, head and cross entropy.

Each rank holds the vectors of its words (some ranks one more than others) and works out its
words' logits only. The loss needs three numbers of each token from all ranks: the
largest logit, the sum of exponentials and the target's logit. Logits never leave their rank.

Shapes: B batch, S sequence, D hidden, V words of this rank, N tokens.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.loss import chunks_of
from drumline_trainer.parallelism.tensor_parallel.layers import Region, own_piece


class VocabularyEmbedding(nn.Module):
    """The vectors of this rank's words. It is also the head if embeddings are tied."""

    head_weight: Tensor | None = None
    """Weight [words, D] of the head, if that is another copy of the embedding."""

    def __init__(self, embedding: nn.Embedding, region: Region) -> None:
        super().__init__()
        self.region = region
        self.words = region.piece(embedding.num_embeddings)
        self.weight = own_piece(embedding.weight, 0, region)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Look words up, each on its rank; shape [batch, sequence, hidden], outside the region."""
        rows_BS, here_BS = rows_of(tokens_BS, self.words)
        x_BSD = F.embedding(rows_BS, self.weight)
        # Each token is on one rank, and zeros on all others, so the sum is its vector.
        return self.region.leave(x_BSD.masked_fill(~here_BS.unsqueeze(-1), 0.0))

    def logits(self, x_BSD: Tensor) -> Tensor:
        """Score this rank's words inside of the region; shape [batch, sequence, words]."""
        return F.linear(x_BSD, self.weight if self.head_weight is None else self.head_weight)


def vocabulary_parallel_loss(
    logits_BSV: Tensor, targets_BS: Tensor, *, group: ProcessGroup, vocabulary: int
) -> Tensor:
    """Sum the cross entropy over all positions in fp32, from this rank's words' logits.

    The same number on every rank, and that of `models.loss.token_losses_sum` on whole logits. A
    target of `IGNORED` has no loss, as there. Costs two all-reduces of 4 and 8 bytes a token; keeps
    the logits in their own type for backward.

    Args:
        logits_BSV: of this rank's words, for all positions.
        targets_BS: words, the same on all ranks.
        group: the ranks of the tensor axis.
        vocabulary: number of words of all ranks.
    """
    words = Region(group=group, sequence_parallel=False).piece(vocabulary)
    return cast(
        "Tensor",
        _CrossEntropySum.apply(logits_BSV.flatten(0, -2), targets_BS.flatten(), words, group),
    )


def rows_of(tokens: Tensor, words: range) -> tuple[Tensor, Tensor]:
    """Return tokens' rows on the rank with these words, and if it has them; both like tokens."""
    here = (tokens >= words.start) & (tokens < words.stop)
    return (tokens - words.start).masked_fill(~here, 0), here


class _CrossEntropySum(Function):
    """-log softmax(logits)[target], with the softmax over the words of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, words: range, group: ProcessGroup
    ) -> Tensor:
        rows_N, here_N = rows_of(targets_N, words)
        # 1. The largest logit over all words keeps the exponentials finite.
        largest_N = logits_NV.amax(dim=-1).float()
        with step_part("all_reduce", Axis.TENSOR):
            dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=group)
        # 2. Sum of exponentials and logit of the target, in one all-reduce.
        sums_2N = largest_N.new_empty(2, len(largest_N))
        for part in chunks_of(logits_NV):
            shifted_CV = logits_NV[part].float() - largest_N[part].unsqueeze(-1)
            of_target_C = shifted_CV.gather(-1, rows_N[part].unsqueeze(-1)).squeeze(-1)
            sums_2N[1, part] = of_target_C.masked_fill(~here_N[part], 0)
            sums_2N[0, part] = shifted_CV.exp_().sum(dim=-1)
        with step_part("all_reduce", Axis.TENSOR):
            dist.all_reduce(sums_2N, group=group)
        # 3. loss = log(sum of exponentials) - logit of the target, both relative to the largest.
        log_sum_N = sums_2N[0].log()
        counted_N = targets_N != IGNORED
        ctx.save_for_backward(logits_NV, largest_N, sums_2N[0].clone(), rows_N, here_N, counted_N)
        return (log_sum_N - sums_2N[1]).masked_fill(~counted_N, 0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits_NV, largest_N, sums_N, rows_N, here_N, counted_N = ctx.saved_tensors
        gradient_NV = torch.empty_like(logits_NV)
        for part in chunks_of(logits_NV):
            part_CV = (logits_NV[part].float() - largest_N[part].unsqueeze(-1)).exp_()
            part_CV.div_(sums_N[part].unsqueeze(-1))
            minus_C1 = -here_N[part].float().unsqueeze(-1)
            # Gradient of a logit: its probability, minus 1 for the target.
            part_CV.scatter_add_(-1, rows_N[part].unsqueeze(-1), minus_C1)
            gradient_NV[part] = part_CV.mul_(gradients[0] * counted_N[part].unsqueeze(-1))
        return gradient_NV, None, None, None
