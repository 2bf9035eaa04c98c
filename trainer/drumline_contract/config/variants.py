"""Published model families and the kinds of layers in which they differ."""

from __future__ import annotations

from enum import StrEnum


class Family(StrEnum):
    """Architecture of the model."""

    LLAMA = "llama"
    """RMSNorm, rotary positions, SwiGLU; a mixture of experts where `experts` is above 0."""
    GPT2 = "gpt2"
    """LayerNorm, learned positions, GELU, biases."""
    VIT = "vit"
    """An encoder of images that names their class."""
    TRANSFORMERS = "transformers"
    """The causal language model that a config.json names, as the library transformers builds it."""


class AttentionBias(StrEnum):
    """Projections of llama's attention that have a bias."""

    NONE = "none"
    """Llama's, Mistral's, Qwen 3's."""
    INPUTS = "inputs"
    """Queries, keys and values: Qwen 2's."""
    ALL = "all"
    """The output too."""


class NormPlacement(StrEnum):
    """Position of the norms in llama's layers."""

    BEFORE = "before"
    """Normalize the inputs of attention and feed-forward."""
    AFTER = "after"
    """Normalize their outputs before the residual addition, as in OLMo 2."""
    AROUND = "around"
    """Both: Gemma's from 2 on."""


class Activation(StrEnum):
    """Activation of the gate in llama's feed-forward."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU by its approximation with tanh: Gemma's."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """g · sigmoid(1.702 g) · (1 + up), gate and up cut at 7: GPT-OSS's."""
