"""The section `model`: the shape of a model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from drumline_contract.config.bounds import (
    Layers,
    Positions,
    Width,
    nearest_divisors,
    nearest_multiples,
)
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.rope import RopeScaling
from drumline_contract.config.routing import RouterScores, Routing
from drumline_contract.config.variants import Activation, AttentionBias, Family, NormPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a transformer."""

    family: Family = Family.LLAMA
    vocab_size: Width = 256
    """Number of tokens in the vocabulary. The built-in vocabulary is the 256 bytes."""
    layers: Layers = 2
    """Number of layers. Each has attention and a feed-forward."""
    hidden_size: Width = 64
    """Size of the residual stream."""
    ffn_size: Width = 192
    """Inner size of a feed-forward layer."""
    heads: Width = 4
    """Query heads of each layer."""
    kv_heads: Width = 2
    """Key-value heads; each serves `heads / kv_heads` query heads."""
    head_size: Width | None = None
    """Features of each query, key and value of a head. None: hidden_size / heads."""
    query_key_norm: bool = False
    """With llama: queries and keys are normalized per head, as in Qwen 3."""
    query_key_norm_over_heads: bool = False
    """With query_key_norm: over all heads of a position together, as in OLMo 2."""
    norm_placement: NormPlacement = NormPlacement.BEFORE
    """With llama: which side of attention and feed-forward is normalized."""
    activation: Activation = Activation.SILU
    """With llama: activation function of the feed-forward's gate."""
    scaled_embedding: bool = False
    """With llama: embeddings are multiplied by the square root of hidden_size."""
    embedding_multiplier: float = 1.0
    """With llama: embeddings are multiplied by this factor (Granite)."""
    residual_multiplier: float = 1.0
    """With llama: factor of the outputs of attention and feed-forward before they are added."""
    query_divisor: Width | None = None
    """With llama: scores are divided by its square root. None: the size of a head."""
    attention_softcap: float | None = None
    """With llama: scores s become c · tanh(s / c), as in Gemma 2. None: unchanged scores."""
    attention_sinks: bool = False
    """With llama: each head has a score that takes a share of every softmax and gives nothing."""
    logit_softcap: float | None = None
    """With llama: the same of what the head gives."""
    logit_divisor: float = 1.0
    """With llama: what the head gives is divided by it, before a soft cap."""
    attention_bias: AttentionBias = AttentionBias.NONE
    """With llama: which projections of attention add a bias."""
    latent_attention: LatentAttention | None = None
    """With llama: keys and values are made of few features, as in DeepSeek-V2. None: they have
    projections of their own."""
    sliding_window: Positions | None = None
    """With llama: number of positions that a position attends to, itself included. None: all
    earlier positions."""
    full_attention_every: Layers = 0
    """With sliding_window: every N-th layer attends to all positions. 0: no layer does."""
    rope_theta: float = 10_000.0
    """With llama: base of the rotary positions."""
    rope_share: float = 1.0
    """With llama: share of each head's features that get rotary positions. The others have none."""
    no_rope_every: Layers = 0
    """With llama: every N-th layer has no rotary positions, as in SmolLM3. 0: all layers have them.
    """
    rope_scaling: RopeScaling | None = None
    """With llama: for sequences longer than the model began with. None: no scaling."""
    window_rope_theta: float | None = None
    """With sliding_window: base in the layers that have one, without scaling. None: rope_theta."""
    norm_epsilon: float = 1e-5
    """Added to the variance that a norm divides by."""
    tied_embeddings: bool = True
    """The output head is the embedding, transposed; not with vit."""
    dropout: float = 0.0
    """Share of the activations that each layer adds to the residual stream left out at random."""
    max_positions: Positions = 1024
    """With gpt2: the longest sequence there are learned positions for."""
    experts: Width = 0
    """With llama: number of experts in each layer. 0: every layer is dense."""
    dense_layers: Layers = 0
    """With experts: number of first layers that are dense, with a feed-forward of ffn_size."""
    experts_per_token: Width = 2
    """Number of experts that the router chooses for each token."""
    expert_ffn_size: Width | None = None
    """Inner size of each expert. None: ffn_size."""
    shared_experts: Width = 0
    """Size of the feed-forward that every token passes beside the chosen experts, in experts."""
    routing: Routing = field(default_factory=Routing)
    """With experts: how they are chosen."""
    expert_bias: bool = False
    """With experts: they and the router add biases."""
    balance_weight: float = 0.0
    """Weight of the loss that spreads a sequence's tokens over the experts. 0: no such loss.
    Separate documents are sequences of their own, and padding does not count."""
    image_size: Width = 32
    """With vit: pixels of each side."""
    patch_size: Width = 8
    """With vit: pixels of each side of what becomes one position."""
    channels: Width = 3
    """With vit: values of a pixel."""
    config_json: str = ""
    """With transformers: the config.json as one line. Empty: that of the folder in model_from or
    config_from, which also gives vocab_size; the other sizes are not read."""
    classes: Width = 10
    """With vit: the kinds of images there are."""
    class_token: bool = False
    """With vit: the class is read from a learned position in front of the patches, as in the paper.
    False: from the mean of the patches."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        # None passes as 1, which is valid, since an unset field has no value to check.
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
                "model.window_rope_theta": self.window_rope_theta or 1,
                "model.attention_softcap": 1
                if self.attention_softcap is None
                else self.attention_softcap,
                "model.logit_softcap": 1 if self.logit_softcap is None else self.logit_softcap,
                "model.embedding_multiplier": self.embedding_multiplier,
                "model.residual_multiplier": self.residual_multiplier,
                "model.logit_divisor": self.logit_divisor,
                "model.query_divisor": 1 if self.query_divisor is None else self.query_divisor,
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
        # 0 turns these features off, so they only must not be negative.
        require_not_negative(
            {
                "model.norm_epsilon": self.norm_epsilon,
                "model.full_attention_every": self.full_attention_every,
                "model.no_rope_every": self.no_rope_every,
                "model.experts": self.experts,
                "model.shared_experts": self.shared_experts,
                "model.dense_layers": self.dense_layers,
                "model.balance_weight": self.balance_weight,
            }
        )
        # Dropout divides by 1 - p, so 1 is excluded.
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout: must be at least 0 and below 1, not {self.dropout}")
        # The text is the user's config.json, which only a class of transformers reads.
        if self.config_json and self.family is not Family.TRANSFORMERS:
            raise ConfigError("model.config_json: is for family transformers; leave it out")
        # Checks of related fields come last, because they divide by sizes that are positive now.
        _check_heads(self)
        _check_family(self)
        _check_windows(self)
        _check_experts(self)
        if self.family is Family.VIT:
            _check_patches(self)

    @property
    def features_per_head(self) -> int:
        """Size of a query, key or value of one head."""
        return self.head_size or self.hidden_size // self.heads

    @property
    def writes_scores(self) -> bool:
        """True if no attention kernel of PyTorch supports this model, so that scores are stored."""
        return self.attention_softcap is not None or self.attention_sinks

    @property
    def features_turned(self) -> int:
        """Number of features of a head's query or key that get rotary positions."""
        if self.latent_attention is not None:
            return self.latent_attention.turned_size
        return int(self.features_per_head * self.rope_share)

    @property
    def features_per_value(self) -> int:
        """Size of a value of one head."""
        latent = self.latent_attention
        return self.features_per_head if latent is None else latent.value_size

    @property
    def score_scale(self) -> float | None:
        """Factor of the attention scores. None: 1 / √(size of a head)."""
        # YaRN for latent attention scales scores instead of queries and keys.
        growth = 1.0 if self.rope_scaling is None else self.rope_scaling.score_multiplier
        # None lets the attention kernel use its own default, in its fast path.
        if self.query_divisor is None and growth == 1:
            return None
        return (self.query_divisor or self.features_per_head) ** -0.5 * growth

    @property
    def corrects_scores(self) -> bool:
        """True if the router has correction terms, which affect the choice and get no gradient."""
        return self.experts > 0 and self.routing.scores is RouterScores.SIGMOID

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
        """True if head and embedding share one parameter. Never for models of images."""
        return self.tied_embeddings and self.family is not Family.VIT

    def has_experts(self, layer: int) -> bool:
        """Return whether the layer of this index is a mixture of experts."""
        return self.experts > 0 and layer >= self.dense_layers

    def window(self, layer: int) -> int | None:
        """Return the attention window of a layer in positions. None: all earlier positions."""
        every = self.full_attention_every
        # Layers count from 1 here, as in Gemma: with 6, the layers 6, 12, ... see everything.
        return None if every and (layer + 1) % every == 0 else self.sliding_window

    def turns(self, layer: int) -> bool:
        """Return whether a layer applies rotary positions to queries and keys."""
        return not self.no_rope_every or (layer + 1) % self.no_rope_every != 0

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def image_positions(self) -> int:
        """Positions of an image: its patches, and the class token."""
        return self.patches + self.class_token


def _check_heads(model: ModelConfig) -> None:
    # Without a head_size the heads must divide the hidden size.
    if model.head_size is None and model.hidden_size % model.heads:
        raise ConfigError(
            f"model.heads: hidden_size {model.hidden_size} does not divide by {model.heads} heads;"
            f" use {_legal_heads(model)}"
        )
    # Grouped-query attention repeats each key-value head the same number of times.
    if model.heads % model.kv_heads:
        raise ConfigError(
            f"model.kv_heads: {model.heads} heads do not divide by {model.kv_heads} kv_heads;"
            f" use {nearest_divisors(model.kv_heads, of=model.heads)}"
        )
    if model.family is Family.LLAMA:
        if not 0 < model.rope_share <= 1:
            raise ConfigError(
                f"model.rope_share: must be above 0 and at most 1, not {model.rope_share}"
            )
        _check_latent(model)
        # Rotation acts on pairs of features.
        if model.features_turned % 2:
            raise ConfigError(_odd_head(model))
        if model.rope_scaling is not None:
            model.rope_scaling.check_pairs(model.features_turned // 2)
        if model.query_key_norm_over_heads and not model.query_key_norm:
            raise ConfigError("model.query_key_norm_over_heads: set model.query_key_norm too")
    elif model.attention_bias is not AttentionBias.NONE:
        raise ConfigError(
            f"model.attention_bias: only llama chooses; {model.family} always has all biases"
        )


_OF_LLAMA = (
    *("query_key_norm", "query_key_norm_over_heads", "norm_placement", "activation"),
    *("scaled_embedding", "query_divisor", "attention_softcap", "logit_softcap", "rope_share"),
    *("sliding_window", "window_rope_theta", "attention_sinks", "latent_attention"),
    *("embedding_multiplier", "residual_multiplier", "logit_divisor", "no_rope_every"),
)
_NOT_LATENT = (
    *("query_key_norm", "attention_bias", "attention_sinks", "attention_softcap"),
    *("sliding_window", "query_divisor", "rope_share", "no_rope_every"),
)


def _check_latent(model: ModelConfig) -> None:
    """Check that latent attention has none of the other variants, and as many keys as queries."""
    latent = model.latent_attention
    if latent is None:
        if model.rope_scaling is not None and model.rope_scaling.score_growth:
            raise ConfigError("model.rope_scaling.score_growth: is for model.latent_attention")
        return
    # A default is the value at which a variant is off.
    defaults = {field.name: field.default for field in fields(model)}
    for name in _NOT_LATENT:
        if getattr(model, name) != defaults[name]:
            raise ConfigError(f"model.{name}: not with model.latent_attention")
    # Keys are computed for each head from the shared latent.
    if model.kv_heads != model.heads:
        raise ConfigError(
            f"model.kv_heads: with model.latent_attention each of the {model.heads} heads has its"
            f" own keys, not {model.kv_heads}"
        )
    # Both must fit into a head, because values are padded to its size.
    sizes = {"turned_size": latent.turned_size, "value_size": latent.value_size}
    for name, size in sizes.items():
        if size > model.features_per_head:
            raise ConfigError(
                f"model.latent_attention.{name}: {size} is above model.head_size"
                f" {model.features_per_head}"
            )


_OF_TRANSFORMERS = ("family", "config_json", "vocab_size")
_WHOLE_CONFIG_JSON = 1 << 20


def _check_transformers(model: ModelConfig) -> None:
    """Refuse sizes beside a class of transformers, which takes them from config.json alone.

    Raises:
        ConfigError: a size is set, or config.json is too long.
    """
    defaults = ModelConfig()
    for name in (each.name for each in fields(model)):
        if name not in _OF_TRANSFORMERS and getattr(model, name) != getattr(defaults, name):
            raise ConfigError(
                f"model.{name}: family transformers takes its sizes from config.json; leave it out,"
                " and write it in config.json"
            )
    # The size is bounded, since the text travels in each pod's configuration.
    if len(model.config_json) > _WHOLE_CONFIG_JSON:
        raise ConfigError(f"model.config_json: is longer than {_WHOLE_CONFIG_JSON} characters")


def _check_family(model: ModelConfig) -> None:
    """Check that other families have none of llama's variants."""
    if model.family is Family.LLAMA:
        return
    if model.family is Family.TRANSFORMERS:
        _check_transformers(model)
        return
    # Other families ignore these fields, and a silent ignore would train another model.
    defaults = {field.name: field.default for field in fields(model)}
    for name in _OF_LLAMA:
        if getattr(model, name) != defaults[name]:
            raise ConfigError(f"model.{name}: only llama has it, not {model.family}")


def _check_windows(model: ModelConfig) -> None:
    if model.sliding_window is not None:
        return
    # Fields about windows without a window are probably a typing error.
    if model.full_attention_every:
        raise ConfigError(
            "model.full_attention_every: says which layers have no window; set model.sliding_window"
        )
    if model.window_rope_theta is not None:
        raise ConfigError(
            "model.window_rope_theta: is for layers with a window; set model.sliding_window"
        )


def _odd_head(model: ModelConfig) -> str:
    size, why = model.features_turned, "is odd, and rotary embedding turns pairs"
    if model.latent_attention is not None:
        return (
            f"model.latent_attention.turned_size: {size} {why}; use {nearest_multiples(size, of=2)}"
        )
    if model.rope_share != 1:
        return f"model.heads: rope_share {model.rope_share} of {size} {why}"
    if model.head_size is not None:
        return f"model.head_size: a head of {size} {why}; use {nearest_multiples(size, of=2)}"
    return f"model.heads: a head of {size} {why}; use {_legal_heads(model)}"


def _legal_heads(model: ModelConfig) -> str:
    """Return the nearest legal numbers of heads, or else the sizes that allow this one."""
    # Rotary families need an even head size, so the divisors of half the size are suggested.
    size, rotary = model.hidden_size, model.family is Family.LLAMA
    if rotary and size % 2:
        return f"a hidden_size of {nearest_multiples(size, of=2 * model.heads)}"
    return nearest_divisors(model.heads, of=size // 2 if rotary else size)


def _check_experts(model: ModelConfig) -> None:
    # Fields about experts without experts would have no effect.
    if not model.experts:
        for name in ("shared_experts", "dense_layers", "expert_bias"):
            if getattr(model, name):
                raise ConfigError(f"model.{name}: the model has no experts; set model.experts")
        return
    if model.family is not Family.LLAMA:
        raise ConfigError(f"model.experts: only llama has them, not {model.family}")
    if model.experts_per_token > model.experts:
        raise ConfigError(
            f"model.experts_per_token: {model.experts_per_token} are more than the"
            f" {model.experts} experts"
        )
    # The groups need the number of experts, so the section checks itself from here.
    model.routing.check_experts(experts=model.experts, per_token=model.experts_per_token)


def _check_patches(model: ModelConfig) -> None:
    if model.image_size % model.patch_size:
        raise ConfigError(
            f"model.patch_size: image_size {model.image_size} does not divide by {model.patch_size}"
        )
