"""Low-rank adapters of experts: each expert has its own, and none is folded into a weight.

Gate and up share the inner matrix A, as they are one tensor in the library transformers and one
adapter in peft (`target_parameters`):

    gate, up   y = W x + scale · B A x     A: X R D   B: X 2F R, gate's rows first
    down       y = W h + scale · B A h     A: X R F   B: X D R

Rows that are sorted by expert pass both factors by the same grouped product as the weights.

Shapes: X experts of this rank, R rank, D hidden, F feed-forward; rows are of shape T D or T F.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from drumline_contract.config import LoraConfig
from drumline_contract.config.lora import EXPERTS_DOWN, EXPERTS_GATE_UP
from drumline_trainer.models.mixture import Experts, MixtureOfExperts, Times, by_expert
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, named_modules

GATE_UP, DOWN = "gate_up_adapter", "down_adapter"
"""Modules beside the experts' weights, each with an A and a B."""


class ExpertAdapter(nn.Module):
    """The two factors, of every expert.

    Args:
        experts: number of experts on this rank.
        inputs: input features.
        outputs: output features.
        rank: rank of the adapter.
        like: gives dtype and device.
    """

    def __init__(self, experts: int, inputs: int, outputs: int, *, rank: int, like: Tensor) -> None:
        super().__init__()
        empty = like.detach().new_empty
        self.lora_a = nn.Parameter(empty(experts, rank, inputs))
        self.lora_b = nn.Parameter(empty(experts, outputs, rank))

    def forward(self, rows: Tensor, counts_X: Tensor) -> Tensor:
        """B A times rows that are sorted by expert, not scaled."""
        # [T, I] to [T, R] to [T, O]: both products take the row counts of the experts.
        inner = by_expert(rows, self.lora_a, counts_X)(rows, self.lora_a)
        return by_expert(inner, self.lora_b, counts_X)(inner, self.lora_b)


class LoraExperts(Experts):
    """Frozen experts with adapters. It takes over their parameters, by their names."""

    def __init__(self, experts: Experts, *, config: LoraConfig) -> None:
        # `Experts.__init__` would make weights. The ones of the replaced module are used instead.
        nn.Module.__init__(self)
        self.activation = experts.activation
        for name, parameter in experts.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        # A missing bias must exist as None, because the forward pass reads it.
        for name in ("gate_bias", "up_bias", "down_bias"):
            if getattr(experts, name) is None:
                self.register_parameter(name, None)
        self.scale, self.applied = config.scale, True
        count, inner, hidden = self.gate.shape
        self.gate_up_adapter = self.down_adapter = None
        if EXPERTS_GATE_UP in config.projections:
            # One A serves gate and up, so B has 2 F rows: gate's first, then up's.
            self.gate_up_adapter = ExpertAdapter(
                count, hidden, 2 * inner, rank=config.rank, like=self.gate
            )
        if EXPERTS_DOWN in config.projections:
            self.down_adapter = ExpertAdapter(
                count, inner, hidden, rank=config.rank, like=self.down
            )

    def inner(self, times: Times, rows_RD: Tensor, counts_X: Tensor) -> tuple[Tensor, Tensor]:
        """Return gate's and up's products, with their adapter.

        Args:
            times: computes a product for each expert.
            rows_RD: rows sorted by expert [R, D].
            counts_X: rows of each expert [X].
        """
        gate_RF, up_RF = super().inner(times, rows_RD, counts_X)
        if self.gate_up_adapter is None or not self.applied:
            return gate_RF, up_RF
        # Computed once for both, then divided along the features.
        added = self.gate_up_adapter(rows_RD, counts_X) * self.scale
        of_gate_RF, of_up_RF = added.chunk(2, dim=-1)
        return gate_RF + of_gate_RF, up_RF + of_up_RF

    def outer(self, times: Times, hidden_RF: Tensor, counts_X: Tensor) -> Tensor:
        """Return down's product, with its adapter.

        Args:
            times: computes a product for each expert.
            hidden_RF: activations of the experts [R, F].
            counts_X: rows of each expert [X].
        """
        rows_RD = super().outer(times, hidden_RF, counts_X)
        if self.down_adapter is None or not self.applied:
            return rows_RD
        return rows_RD + self.down_adapter(hidden_RF, counts_X) * self.scale


def adapt_experts(stage: nn.Module, config: LoraConfig, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
    """Put adapters beside the experts of a stage on the meta device, in place.

    Args:
        stage: its experts are cut by the expert axis at most.
        config: which of their products.
        cuts: cuts of the stage's parameters.

    Returns:
        The cuts of the adapters, where the experts are cut.
    """
    added: dict[str, Cut] = {}
    modules = named_modules(stage)
    mixtures = [(path, each) for path, each in modules if isinstance(each, MixtureOfExperts)]
    # Adapters of experts are cut with their experts along dimension 0. Rank and features stay
    # whole.
    for path, mixture in mixtures:
        mixture.experts = LoraExperts(mixture.experts, config=config)
        # No cut: all experts are here, and a default slice is correct.
        cut = cuts.get(f"{path}.experts.gate")
        if cut is not None:
            added.update(_cuts(f"{path}.experts", mixture.experts, cut))
    return added


def _cuts(path: str, experts: Experts, cut: Cut) -> Iterator[tuple[str, Cut]]:
    """Return the cuts of the adapters, which have the experts of the weights."""
    for name, parameter in experts.named_parameters():
        if not name.startswith((GATE_UP, DOWN)):
            continue
        own = tuple(parameter.shape)
        box = Box(offsets=(cut.box.offsets[0], 0, 0), shape=own)
        shape = (cut.shape[0], *own[1:])
        yield f"{path}.{name}", Cut(shape=shape, box=box, copies=cut.copies, copy=cut.copy)


def added_to(name: str, adapters: Mapping[str, Tensor]) -> Tensor | None:
    """B A of the weight of experts with this name, not scaled; None: it has no adapter.

    Args:
        name: such as `layers.0.feed_forward.experts.up`.
        adapters: whole, by name.

    Returns:
        In fp32, of the weight's shape.
    """
    path, _, weight = name.rpartition(".")
    # Names alone decide: the base's tensors are read one by one, without a model.
    if not path.endswith(".experts") or weight not in ("gate", "up", "down"):
        return None
    beside = DOWN if weight == "down" else GATE_UP
    a, b = (adapters.get(f"{path}.{beside}.{part}") for part in ("lora_a", "lora_b"))
    if a is None or b is None:
        return None
    # Index 0 are gate's rows and index 1 up's.
    if weight != "down":
        b = b.chunk(2, dim=1)[weight == "up"]
    # [X, O, R] times [X, R, I] in fp32, as for linear layers.
    return torch.bmm(b.float(), a.float())
