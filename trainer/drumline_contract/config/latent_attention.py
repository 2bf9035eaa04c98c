"""The section `model.latent_attention`: keys and values from few features of a position."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.bounds import Width
from drumline_contract.config.errors import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024).

    Queries and keys of a head are of `model.head_size` features, of which the last ones turn with
    the position; those of the keys are the same for all heads.
    """

    query_rank: Width | None = None
    """Features that the queries of all heads are made of. None: the hidden states."""
    key_value_rank: Width
    """Features that the keys and values of all heads are made of, but for what turns of the keys.
    """
    turned_size: Width
    """Rotary features of each query and key."""
    value_size: Width
    """Features of a value of one head. At most the features of a key."""
    interleaved: bool = True
    """Neighbours turn together; otherwise a feature and the one half of them further."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.latent_attention.query_rank": 1
                if self.query_rank is None
                else self.query_rank,
                "model.latent_attention.key_value_rank": self.key_value_rank,
                "model.latent_attention.turned_size": self.turned_size,
                "model.latent_attention.value_size": self.value_size,
            }
        )
