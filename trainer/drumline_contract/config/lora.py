"""The section `lora`: low-rank adapters and the precision of the base weights."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.bounds import Number, Width, check_place
from drumline_contract.config.errors import ConfigError, require_positive

PROJECTIONS = (
    *("query", "key", "value", "output", "gate", "up", "down"),
    *("query_latent", "key_value_latent", "key_value"),
)
"""Of attention the first four, of feed-forward layers three; some families have no gate. Of latent
attention the last ones, with queries and output."""
BASE_BITS = (16, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Training of low-rank adapters alone (Hu et al. 2021); all other weights stay as they are."""

    rank: Width = 16
    """Inner size of the adapters."""
    alpha: float = 32.0
    """What the adapters add is multiplied by alpha / rank."""
    targets: str = ",".join(PROJECTIONS)
    """Projections that get an adapter, separated by commas."""
    base_bits: Number = 16
    """Of the weights beneath the adapters: 16 keeps them in the type of `precision`, 4 packs them
    into blocks of NF4 (QLoRA, Dettmers et al. 2023)."""
    double_quantization: bool = False
    """With 4 bits: the scales of the blocks are packed too, into 8 bits."""
    adapters_from: str | None = None
    """Folder with adapters of this model as the library peft lays them out, which go on learning:
    on this machine, `s3://` or `gs://`. None: they begin adding nothing."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"lora.rank": self.rank, "lora.alpha": self.alpha})
        absolute = ("/", "s3://", "gs://")
        if self.adapters_from is not None and not self.adapters_from.startswith(absolute):
            raise ConfigError(
                "lora.adapters_from: must be an absolute folder or a bucket's URL, not"
                f" {self.adapters_from!r}"
            )
        check_place(self.adapters_from or "", field="lora.adapters_from")
        if self.base_bits not in BASE_BITS:
            raise ConfigError(f"lora.base_bits: must be 16 or 4, not {self.base_bits}")
        if self.double_quantization and self.base_bits != 4:
            raise ConfigError(
                "lora.double_quantization: packs the scales of 4 bits; set lora.base_bits to 4"
            )
        if unknown := sorted(self.projections - set(PROJECTIONS)):
            raise ConfigError(
                f"lora.targets: no projection is called {unknown[0]!r}; there are"
                f" {', '.join(PROJECTIONS)}"
            )

    @property
    def projections(self) -> frozenset[str]:
        """Names of the layers that get an adapter."""
        return frozenset(name.strip() for name in self.targets.split(","))

    @property
    def scale(self) -> float:
        """Of what an adapter adds."""
        return self.alpha / self.rank
