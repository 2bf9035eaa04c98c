"""The section `lora`: low-rank adapters and the precision of the base weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drumline_contract.config.bounds import Number, Width, check_place
from drumline_contract.config.errors import ConfigError, require_positive
from drumline_contract.config.model import ModelConfig
from drumline_contract.config.variants import Family

PROJECTIONS = (
    *("query", "key", "value", "output", "gate", "up", "down"),
    *("query_latent", "key_value_latent", "key_value"),
)
"""Projections that adapters can apply to: four of attention, three of the feed-forward (some
families have no gate), then those of latent attention, which also has queries and output."""
EXPERTS_GATE_UP, EXPERTS_DOWN = "experts_gate_up", "experts_down"
EXPERT_PROJECTIONS = (EXPERTS_GATE_UP, EXPERTS_DOWN)
"""Products of a mixture's experts. They get adapters only if `targets` names them."""
BASE_BITS = (16, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Training of low-rank adapters alone (Hu et al. 2021); all other weights stay as they are."""

    rank: Width = 16
    """Inner size of the adapters."""
    alpha: float = 32.0
    """The adapters' output is multiplied by alpha / rank."""
    rslora: bool = False
    """The adapters add alpha / √rank times their product instead (Kalajdzievski 2023)."""
    targets: str = ",".join(PROJECTIONS)
    """Projections that get an adapter, separated by commas: those of them that the model has.
    Experts get adapters only by the names `experts_gate_up` and `experts_down`. With model.family
    transformers: the model's own names, such as `q_proj,v_proj`; by default all linear layers but
    the head."""
    base_bits: Number = 16
    """Bits of each weight below the adapters. 16 keeps the type of `precision`. 4 packs them into
    blocks of NF4 (QLoRA, Dettmers et al. 2023)."""
    double_quantization: bool = False
    """With 4 bits: the scales of the blocks are packed too, into 8 bits."""
    adapters_from: str | None = None
    """Folder with adapters for this model in the layout of the peft library, to continue training
    them. A local path, `s3://`, `gs://` or `hf://`. None: new adapters, which begin adding
    nothing."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"lora.rank": self.rank, "lora.alpha": self.alpha})
        absolute = ("/", "s3://", "gs://", "hf://")
        if self.adapters_from is not None and not self.adapters_from.startswith(absolute):
            raise ConfigError(
                "lora.adapters_from: must be an absolute folder or a URL, not"
                f" {self.adapters_from!r}"
            )
        check_place(self.adapters_from or "", field="lora.adapters_from")
        if self.base_bits not in BASE_BITS:
            raise ConfigError(f"lora.base_bits: must be 16 or 4, not {self.base_bits}")
        if self.double_quantization and self.base_bits != 4:
            raise ConfigError(
                "lora.double_quantization: packs the scales of 4 bits; set lora.base_bits to 4"
            )

    @property
    def projections(self) -> frozenset[str]:
        """Names of the layers that get an adapter, where a model has them."""
        return frozenset(name.strip() for name in self.targets.split(","))

    @property
    def targets_all(self) -> bool:
        """Return whether `targets` has its default."""
        return self.targets == ",".join(PROJECTIONS)

    def check_targets(self, family: Family) -> None:
        """Raise ConfigError where a name is of no projection; a module of transformers has its own.

        Args:
            family: of the model.
        """
        unknown = sorted(self.projections - {*PROJECTIONS, *EXPERT_PROJECTIONS})
        if unknown and family is not Family.TRANSFORMERS:
            raise ConfigError(
                f"lora.targets: no projection is called {unknown[0]!r}; there are"
                f" {', '.join((*PROJECTIONS, *EXPERT_PROJECTIONS))}"
            )

    @property
    def scale(self) -> float:
        """Factor that the adapters' output is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def projections_of(self, model: ModelConfig) -> frozenset[str]:
        """Return the names of this model's layers that get an adapter.

        Raises:
            ConfigError: it has none that `targets` names.
        """
        there = _projections(model)
        if not self.projections & there:
            raise ConfigError(
                f"lora.targets: the model has no layer called {self.targets} that adapters lie"
                f" beside; it has {','.join(sorted(there))}"
            )
        return self.projections & there


def _projections(model: ModelConfig) -> frozenset[str]:
    names = {"query", "key", "value", "output"}
    if model.latent_attention is not None:
        names = {"query", "key_value_latent", "key_value", "output"}
        if model.latent_attention.query_rank is not None:
            names.add("query_latent")
    if not model.experts or model.shared_experts or model.dense_layers:
        names |= {"up", "down"} | ({"gate"} if model.family is Family.LLAMA else set())
    return frozenset(names | ({*EXPERT_PROJECTIONS} if model.experts else set()))
