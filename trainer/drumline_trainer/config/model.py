"""The shape of a model, and the shapes that have names."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.config.errors import ConfigError, require_not_negative, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a Llama-style decoder."""

    vocab_size: int = 256
    """Bytes are the built-in vocabulary."""
    layers: int = 2
    hidden_size: int = 64
    ffn_size: int = 192
    heads: int = 4
    kv_heads: int = 2
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied_embeddings: bool = True
    dropout: float = 0.0
    """Share of the activations that each layer adds to the residual stream left out at random."""
    experts: int = 0
    """Of each mixture-of-experts layer; 0: every layer is dense."""
    experts_per_token: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive(
            {
                "model.vocab_size": self.vocab_size,
                "model.layers": self.layers,
                "model.hidden_size": self.hidden_size,
                "model.ffn_size": self.ffn_size,
                "model.heads": self.heads,
                "model.kv_heads": self.kv_heads,
                "model.rope_theta": self.rope_theta,
            }
        )
        require_not_negative({"model.norm_epsilon": self.norm_epsilon})
        _check_sizes(self)


def _check_sizes(model: ModelConfig) -> None:
    if model.hidden_size % model.heads:
        raise ConfigError(
            f"model.heads: hidden_size {model.hidden_size} does not divide by {model.heads} heads"
        )
    if (model.hidden_size // model.heads) % 2:
        raise ConfigError(
            "model.heads: hidden_size / heads must be even (rotary embedding turns pairs)"
        )
    if model.heads % model.kv_heads:
        raise ConfigError(
            f"model.kv_heads: {model.heads} heads do not divide by {model.kv_heads} kv_heads"
        )
    if model.vocab_size < 256:
        raise ConfigError(
            f"model.vocab_size: must be at least 256, not {model.vocab_size}: the text is bytes"
        )
    if not 0 <= model.dropout < 1:
        raise ConfigError(f"model.dropout: must be at least 0 and below 1, not {model.dropout}")


MODEL_PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(),
    "small": ModelConfig(layers=4, hidden_size=128, ffn_size=384, heads=4, kv_heads=2),
    "llama-125m": ModelConfig(
        layers=12, hidden_size=768, ffn_size=2048, heads=12, kv_heads=12, vocab_size=256
    ),
    "llama-1b": ModelConfig(
        layers=16,
        hidden_size=2048,
        ffn_size=8192,
        heads=32,
        kv_heads=8,
        vocab_size=128_256,
        rope_theta=500_000.0,
    ),
    "llama-8b": ModelConfig(
        layers=32,
        hidden_size=4096,
        ffn_size=14_336,
        heads=32,
        kv_heads=8,
        vocab_size=128_256,
        rope_theta=500_000.0,
        tied_embeddings=False,
    ),
}
