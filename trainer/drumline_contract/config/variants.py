"""Which of the published models a model follows, and where they differ in kind."""

from __future__ import annotations

from enum import StrEnum


class Family(StrEnum):
    """Which paper the model follows."""

    LLAMA = "llama"
    """RMSNorm, rotary positions, SwiGLU; a mixture of experts where `experts` is above 0."""
    GPT2 = "gpt2"
    """LayerNorm, learned positions, GELU, biases."""
    VIT = "vit"
    """An encoder of images that names their class."""
    TRANSFORMERS = "transformers"
    """The causal language model that a config.json names, as the library transformers builds it."""


class AttentionBias(StrEnum):
    """Which projections of llama's attention add a bias."""

    NONE = "none"
    """Llama's, Mistral's, Qwen 3's."""
    INPUTS = "inputs"
    """Queries, keys and values: Qwen 2's."""
    ALL = "all"
    """The output too."""


class NormPlacement(StrEnum):
    """Where llama's layers normalize."""

    BEFORE = "before"
    """What attention and feed-forward take in."""
    AFTER = "after"
    """What they give, before it is added: OLMo 2's."""
    AROUND = "around"
    """Both: Gemma's from 2 on."""


class Activation(StrEnum):
    """What llama's feed-forward does to its gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU by its approximation with tanh: Gemma's."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """g · sigmoid(1.702 g) · (1 + up), gate and up cut at 7: GPT-OSS's."""
