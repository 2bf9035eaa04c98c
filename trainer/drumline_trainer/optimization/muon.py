"""Muon (Jordan et al. 2024): momentum whose singular values are all made about 1.

    m = β·m + (1 - β)·g
    u = 0.2·√max(rows, columns) · orthogonal((1 - β)·g + β·m)
    w = w - rate·(u + weight_decay·w)

A step then moves a matrix as far in its rare directions as in its frequent ones. Muon updates the
matrices of the layers, each expert's separately. AdamW updates embeddings, heads, norms and biases,
which do not map between hidden states. The factor 0.2·√max(rows, columns) gives the update the size
of AdamW's (Liu et al. 2025), so that one learning rate and one weight decay fit both.

The iteration needs the whole matrix. Ranks that share its rows send them to one of them, and each
rank computes other matrices (`shared_matrices`). If the tensor axis cuts the matrix too, and for
stacks of experts, all ranks gather the momentum (`matrices`) and compute the same. The iteration
runs in fp32, because it multiplies bf16's rounding errors, which differ between layouts, by up to
several hundred. With `bf16_iteration` it runs in bf16 like its authors', with norms in fp32.

    bytes of state for each parameter of a matrix: 4, half of AdamW's
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from drumline_contract.config import OptimizerConfig
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.optimization.matrices import matrices_of
from drumline_trainer.optimization.shared_matrices import turns_of
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial. It is steep at 0 and keeps values within about 0.7 and 1.2.
"""
_ITERATIONS = 5
_LIKE_ADAMW = 0.2
"""Root mean square of AdamW's updates, which Muon's are scaled to."""
_HIGHEST = 3
"""Dimensions of a stack of experts' matrices."""


class Muon:
    """For matrices, and AdamW for the rest of this rank's slices.

    Args:
        slices: this rank's parts of the weights.
        config: settings of Muon and AdamW.
        world: process groups of this rank.
    """

    def __init__(
        self, slices: Sequence[TensorSlice], config: OptimizerConfig, world: World
    ) -> None:
        """Share the storage of the slices, which must have been given one. Collective."""
        self._config = config
        self._type = torch.bfloat16 if config.bf16_iteration else torch.float32
        self._is_matrix = [is_hidden_matrix(part.name, part.shape) for part in slices]
        chosen = [part for part, its in zip(slices, self._is_matrix, strict=True) if its]
        rest = [part for part, its in zip(slices, self._is_matrix, strict=True) if not its]
        self._matrices = matrices_of(chosen, world)
        # Turns are for 2-D weights that one all-gather joins. All other matrices are gathered by
        # every rank.
        self._turns = turns_of(self._matrices)
        shared = {number for turns in self._turns for number in turns.numbers}
        self._alone = [number for number in range(len(chosen)) if number not in shared]
        self._momenta = [torch.zeros_like(part.tensor) for part in chosen]
        self._adamw = ShardedAdamW(rest, config)

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step at this learning rate with the gradients of the slices. Collective."""
        # Phase 1: AdamW needs no communication and does not depend on Muon's matrices.
        rest = [g for g, its in zip(gradients, self._is_matrix, strict=True) if not its]
        self._adamw.update(rest, rate=rate)
        chosen = [g for g, its in zip(gradients, self._is_matrix, strict=True) if its]
        beta = self._config.momentum
        # Phase 2: lerp gives m = β·m + (1 - β)·g in place. This is a mean, not torch SGD's sum.
        for momentum, gradient in zip(self._momenta, chosen, strict=True):
            momentum.lerp_(gradient, 1 - beta)

        def ahead(number: int) -> Tensor:
            # Nesterov's look-ahead: (1 - β)·g + β·m with the updated m.
            return chosen[number].lerp(self._momenta[number], beta)

        # Phase 3: collectives in the order of the matrices, which is the same on all ranks of a
        # group.
        for number in self._alone:
            matrix = self._matrices[number]
            whole = matrix.gather(ahead(number))
            # A rank without elements still joins the gather, but has nothing to update.
            if matrix.slice.box.elements:
                self._move(number, matrix.own(orthogonal(whole, dtype=self._type)), rate=rate)
        # Phase 4: each rank computes one matrix of the turn. Two all-to-alls move parts and
        # results.
        for turns in self._turns:
            parts = [ahead(number) for number in turns.numbers]
            whole = turns.to_turn(parts)
            turned = None if whole is None else orthogonal(whole, dtype=self._type)
            made = turns.to_parts(turned, like=parts)
            for number, part in zip(turns.numbers, made, strict=True):
                self._move(number, part, rate=rate)

    def _move(self, number: int, update: Tensor, *, rate: float) -> None:
        part = self._matrices[number].slice
        # Decoupled weight decay, before the update, in the same order as AdamW.
        weight = part.tensor.mul_(1 - rate * self._config.weight_decay)
        weight.sub_(update, alpha=rate * _LIKE_ADAMW * math.sqrt(max(part.shape[-2:])))

    def set_finished_steps(self, steps: int) -> None:
        """Set the step count of AdamW's bias correction."""
        self._adamw.set_finished_steps(steps)

    def slices(self) -> list[TensorSlice]:
        """Return weights, momenta and AdamW's moments by their names in a checkpoint."""
        # AdamW's weights come first. The names, not the order, identify tensors in a checkpoint.
        slices = self._adamw.slices()
        for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
            slices.append(matrix.slice.like(matrix.slice.tensor, prefix="model"))
            slices.append(matrix.slice.like(momentum, prefix="optimizer.momentum"))
        return slices


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Return whether a weight maps hidden states: a matrix of a layer, or a stack of experts'."""
    biases = name.endswith("bias")  # of experts, a row each
    return name.startswith("layers.") and not biases and 1 < len(shape) <= _HIGHEST


def orthogonal(matrices: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about U·Vᵀ of each matrix U·S·Vᵀ, by Newton-Schulz iterations; zeros stay zeros.

    The products are of this type, and the result is of the matrices'.
    """
    a, b, c = _COEFFICIENTS
    # The smaller Gram matrix is the cheaper one: min(rows, columns) squared.
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    # The Frobenius norm bounds the largest singular value by 1, the range where the iteration
    # converges. The 1e-7 keeps zero matrices at zero.
    x = x / (cast("Tensor", torch.linalg.matrix_norm(x, keepdim=True)) + 1e-7)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    x = x.to(dtype)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        # Quintic step of Jordan et al. 2024: a·x + b·(xxᵀ)x + c·(xxᵀ)²x, on the singular values a·s
        # + b·s³ + c·s⁵.
        x = a * x + (b * square + c * square @ square) @ x
    x = x.to(matrices.dtype)
    return x.mT if tall else x
