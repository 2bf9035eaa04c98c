"""The section `model`: the shape of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.bounds import Layers, Positions, Width
from drumline_trainer.config.errors import ConfigError, require_not_negative, require_positive


class Family(StrEnum):
    """Which paper the model follows."""

    LLAMA = "llama"
    """RMSNorm, rotary positions, SwiGLU; a mixture of experts where `experts` is above 0."""
    GPT2 = "gpt2"
    """LayerNorm, learned positions, GELU, biases."""
    VIT = "vit"
    """An encoder of images that names their class."""


class AttentionBias(StrEnum):
    """Which projections of llama's attention add a bias."""

    NONE = "none"
    """Llama's, Mistral's, Qwen 3's."""
    INPUTS = "inputs"
    """Queries, keys and values: Qwen 2's."""
    ALL = "all"
    """The output too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How Llama 3.1 turns slow pairs of a head slower still, for sequences longer than it knew."""

    factor: float
    """The slowest pairs turn so many times slower."""
    low_frequency_factor: float = 1.0
    """Those that turn at most so often in the original length."""
    high_frequency_factor: float = 4.0
    """Those that turn more often stay as they are; between the two it is a ramp."""
    original_positions: Positions = 8192
    """Longest sequence that the model knew before."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.rope_scaling.factor": self.factor,
                "model.rope_scaling.low_frequency_factor": self.low_frequency_factor,
                "model.rope_scaling.original_positions": self.original_positions,
            }
        )
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                "model.rope_scaling.high_frequency_factor: must be above low_frequency_factor"
                f" {self.low_frequency_factor}, not {self.high_frequency_factor}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a transformer."""

    family: Family = Family.LLAMA
    vocab_size: Width = 256
    """How many tokens there are; the built-in vocabulary is the 256 bytes."""
    layers: Layers = 2
    """How many, each of attention and feed-forward."""
    hidden_size: Width = 64
    """Size of the residual stream."""
    ffn_size: Width = 192
    """Inner size of a feed-forward layer."""
    heads: Width = 4
    """Query heads of each layer."""
    kv_heads: Width = 2
    """Key-value heads; each serves `heads / kv_heads` query heads."""
    head_size: Width | None = None
    """Of a query, key or value. None: hidden_size / heads."""
    query_key_norm: bool = False
    """With llama: queries and keys are normalized per head, as in Qwen 3."""
    attention_bias: AttentionBias = AttentionBias.NONE
    """With llama: which projections of attention add a bias."""
    sliding_window: Positions | None = None
    """With llama: a position attends to so many, itself included. None: to all before."""
    full_attention_every: Layers = 0
    """With sliding_window: of so many layers the last sees all positions; 0: none does."""
    rope_theta: float = 10_000.0
    """With llama: base of the rotary positions."""
    rope_scaling: RopeScaling | None = None
    """With llama: for sequences longer than the model began with. None: no scaling."""
    norm_epsilon: float = 1e-5
    """Added to the variance that a norm divides by."""
    tied_embeddings: bool = True
    """The output head is the embedding, transposed; not with vit."""
    dropout: float = 0.0
    """Share of the activations that each layer adds to the residual stream left out at random."""
    max_positions: Positions = 1024
    """With gpt2: the longest sequence there are learned positions for."""
    experts: Width = 0
    """How many each layer has, with llama; 0: every layer is dense."""
    experts_per_token: Width = 2
    """How many of them the router chooses for a token."""
    expert_ffn_size: Width | None = None
    """Inner size of each expert. None: ffn_size."""
    shared_experts: Width = 0
    """So many experts' worth of feed-forward that every token passes beside the chosen ones."""
    balance_weight: float = 0.0
    """Of the loss that keeps a sequence's tokens spread over the experts; 0: none."""
    image_size: Width = 32
    """With vit: pixels of each side."""
    patch_size: Width = 8
    """With vit: pixels of each side of what becomes one position."""
    channels: Width = 3
    """With vit: values of a pixel."""
    classes: Width = 10
    """With vit: the kinds of images there are."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.vocab_size": self.vocab_size,
                "model.layers": self.layers,
                "model.hidden_size": self.hidden_size,
                "model.ffn_size": self.ffn_size,
                "model.heads": self.heads,
                "model.kv_heads": self.kv_heads,
                "model.head_size": 1 if self.head_size is None else self.head_size,
                "model.sliding_window": 1 if self.sliding_window is None else self.sliding_window,
                "model.rope_theta": self.rope_theta,
                "model.max_positions": self.max_positions,
                "model.experts_per_token": self.experts_per_token,
                "model.expert_ffn_size": 1
                if self.expert_ffn_size is None
                else self.expert_ffn_size,
                "model.image_size": self.image_size,
                "model.patch_size": self.patch_size,
                "model.channels": self.channels,
                "model.classes": self.classes,
            }
        )
        require_not_negative(
            {
                "model.norm_epsilon": self.norm_epsilon,
                "model.full_attention_every": self.full_attention_every,
                "model.experts": self.experts,
                "model.shared_experts": self.shared_experts,
                "model.balance_weight": self.balance_weight,
            }
        )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout: must be at least 0 and below 1, not {self.dropout}")
        _check_heads(self)
        _check_windows(self)
        _check_experts(self)
        if self.family is Family.VIT:
            _check_patches(self)
        elif self.vocab_size < 256:
            raise ConfigError(
                f"model.vocab_size: must be at least 256, not {self.vocab_size}: the text is bytes"
            )

    @property
    def features_per_head(self) -> int:
        """Size of a query, key or value of one head."""
        return self.head_size or self.hidden_size // self.heads

    @property
    def features_per_expert(self) -> int:
        """Size of the inner layer of one expert."""
        return self.expert_ffn_size or self.ffn_size

    @property
    def outputs(self) -> int:
        """Number of tokens or classes that the head predicts."""
        return self.classes if self.family is Family.VIT else self.vocab_size

    @property
    def head_is_embedding(self) -> bool:
        """Whether one parameter is both; never where images are embedded."""
        return self.tied_embeddings and self.family is not Family.VIT

    def window(self, layer: int) -> int | None:
        """How many positions a layer of this index attends to; None: all before."""
        every = self.full_attention_every
        return None if every and (layer + 1) % every == 0 else self.sliding_window

    @property
    def patches(self) -> int:
        """Positions of an image."""
        return (self.image_size // self.patch_size) ** 2


def _check_heads(model: ModelConfig) -> None:
    if model.head_size is None and model.hidden_size % model.heads:
        raise ConfigError(
            f"model.heads: hidden_size {model.hidden_size} does not divide by {model.heads} heads"
        )
    if model.heads % model.kv_heads:
        raise ConfigError(
            f"model.kv_heads: {model.heads} heads do not divide by {model.kv_heads} kv_heads"
        )
    if model.family is Family.LLAMA:
        if model.features_per_head % 2:
            raise ConfigError(
                f"model.heads: a head of {model.features_per_head} is odd, and rotary embedding"
                " turns pairs"
            )
    elif model.query_key_norm:
        raise ConfigError(f"model.query_key_norm: only llama has it, not {model.family}")
    elif model.attention_bias is not AttentionBias.NONE:
        raise ConfigError(
            f"model.attention_bias: only llama chooses; {model.family} always has all biases"
        )


def _check_windows(model: ModelConfig) -> None:
    if model.sliding_window is None:
        if model.full_attention_every:
            raise ConfigError(
                "model.full_attention_every: says which layers have no window; set"
                " model.sliding_window"
            )
    elif model.family is not Family.LLAMA:
        raise ConfigError(f"model.sliding_window: only llama has it, not {model.family}")


def _check_experts(model: ModelConfig) -> None:
    if not model.experts:
        if model.shared_experts:
            raise ConfigError("model.shared_experts: the model has no experts; set model.experts")
        return
    if model.family is not Family.LLAMA:
        raise ConfigError(f"model.experts: only llama has them, not {model.family}")
    if model.experts_per_token > model.experts:
        raise ConfigError(
            f"model.experts_per_token: {model.experts_per_token} are more than the"
            f" {model.experts} experts"
        )


def _check_patches(model: ModelConfig) -> None:
    if model.image_size % model.patch_size:
        raise ConfigError(
            f"model.patch_size: image_size {model.image_size} does not divide by {model.patch_size}"
        )
