"""Mapping between tensors of Hugging Face and ours.

Most are one to one. GPT-2 keeps query, key and value in one tensor and the matrices of its layers
transposed. Mixtures keep every expert's matrices separately, and ours are one tensor for all. A
ViT's projection of patches is a convolution there, whose weights have the same order as ours.

Publishers drop prefixes of the names in a folder. A tensor that belongs to no part of ours is
ignored if its purpose is known, and otherwise refused (`matched`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from drumline_contract.config import ModelConfig
from drumline_contract.config.lora import PROJECTIONS
from drumline_contract.config.variants import AttentionBias, NormPlacement
from drumline_contract.shapes.hugging_face import HuggingFaceError, LanguageNames
from drumline_contract.shapes.hugging_face.kind import TensorNames
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.sharding.slices import named_weights

_NOT_WEIGHTS: Final = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Constants that older versions stored: masks and the frequencies of rotary positions."""
HEAD_NAME: Final = "lm_head.weight"
_ENCODER: Final = "vit."
_POOLER: Final = ("pooler.dense.weight", "pooler.dense.bias")


class _EncoderNames:
    """Names of the encoder's tensors in a folder that may contain only the encoder."""

    def __init__(self, stored: Collection[str]) -> None:
        self._alone = "embeddings.cls_token" in stored

    def stored(self, name: str) -> str:
        """Return the name in the files for a tensor's name in a model with a classifier."""
        return name.removeprefix(_ENCODER) if self._alone else name

    def is_beside(self, stored: str) -> bool:
        """Return whether a tensor in the files is outside of the encoder, such as its pooler."""
        return self._alone and stored in _POOLER


def stored_names(names: Collection[str]) -> Callable[[str], str]:
    """Return a function from a model's tensor name to the name in the files, which are `names`."""
    if "wte.weight" in names:  # GPT-2 without its head, as it was first published
        return lambda name: name.removeprefix("transformer.")
    language, encoder = LanguageNames(names), _EncoderNames(names)
    return lambda name: encoder.stored(language.stored(name))


def matched(
    names: set[str], wanted: list[Theirs], *, config: ModelConfig
) -> list[tuple[str, Theirs]]:
    """Return the name in the files of every tensor we need.

    Args:
        names: names in the files.
        wanted: tensors that the model needs.
        config: shape of the model.

    Raises:
        HuggingFaceError: tensors are missing or unknown.
    """
    stored = stored_names(names)
    language, encoder = LanguageNames(names), _EncoderNames(names)
    entries = [(stored(entry.name), entry) for entry in wanted]
    needed = {name for name, _ in entries}
    unused: set[str] = {stored(HEAD_NAME)} if config.tied_embeddings else set()
    extra = {
        name
        for name in names - needed - unused
        if not name.endswith(_NOT_WEIGHTS)
        and not language.is_beside(name)
        and not encoder.is_beside(name)
    }
    for wrong, what in ((needed - names, "missing"), (extra, "unknown")):
        if wrong:
            listing = ", ".join(sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
            raise HuggingFaceError(f"{len(wrong)} tensors are {what}: {listing}")
    return entries


def further_layers(stored: Collection[str], config: ModelConfig) -> set[str]:
    """Return the names of tensors of layers behind the last."""
    layers = (re.match(r"model\.layers\.([0-9]{1,9})\.", name) for name in stored)
    return {each.string for each in layers if each and int(each[1]) >= config.layers}


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """One of their tensors."""

    name: str
    ours: tuple[str, ...]
    """Names of our tensors that lie in it one after another along dimension 0."""
    expert: int | None = None
    """Index of the expert in our tensor, if that holds all experts."""
    transposed: bool = False
    interleaved: bool = False
    """True if rows of our tensors alternate along dimension 1. Each tensor has all experts."""
    offset: float = 0.0
    """Value to add to the stored one: Gemma's norms multiply by 1 + weight."""
    viewed: tuple[int, ...] | None = None
    """Shape of the stored tensor, if it has our numbers in the same order but another shape."""
    fp32: bool = False
    """True if the tensor stays in fp32, regardless of the type of other tensors."""

    @property
    def is_linear_layer(self) -> bool:
        """True if the tensor is exactly the weight of one of our projections.

        The head does not count, although it is called `output` too.
        """
        layer, _, kind = self.ours[0].rpartition(".")
        alone = len(self.ours) == 1 and self.expert is None and not self.transposed
        inside, _, name = layer.rpartition(".")
        return alone and kind == "weight" and bool(inside) and name in PROJECTIONS

    def shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Return the shape of this tensor, from the shapes of ours."""
        if self.viewed is not None:
            return self.viewed
        if self.interleaved:
            experts, inner, *rest = shapes[self.ours[0]]
            whole = (experts, len(self.ours) * inner, *rest)
            return (whole[0], *whole[:0:-1]) if self.transposed else whole
        rows = [self.rows(name, shapes) for name in self.ours]
        rest = shapes[self.ours[0]][1:] if self.expert is None else shapes[self.ours[0]][2:]
        whole = (sum(rows), *rest)
        # of a stack of matrices each is transposed
        return (*whole[:-2], *whole[:-3:-1]) if self.transposed else whole

    def rows(self, ours: str, shapes: Shapes) -> int:
        """Return how many rows of this tensor belong to our tensor."""
        return shapes[ours][0 if self.expert is None else 1]


def our_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name."""
    return {name: tuple(weight.shape) for name, weight in named_weights(build_on_meta(config))}


@dataclass(frozen=True, slots=True, kw_only=True)
class _MixtureNames:
    """Names of a layer's mixture in the files."""

    block: str
    gate: str
    up: str
    down: str


_QWEN = _MixtureNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")
_MIXTRAL = _MixtureNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")


_LAYER_NORMS: dict[NormPlacement, dict[str, str]] = {
    NormPlacement.BEFORE: {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
    },
    NormPlacement.AFTER: {
        "post_attention_layernorm": "attention_out_norm",
        "post_feedforward_layernorm": "feed_forward_out_norm",
    },
    NormPlacement.AROUND: {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "feed_forward_norm",
        "post_feedforward_layernorm": "feed_forward_out_norm",
    },
}
"""Our names by stored names. A stored name means another norm in other placements."""


def their_tensors(config: ModelConfig, names: TensorNames) -> list[Theirs]:
    """List all foreign tensors; the experts of one of our tensors follow each other."""
    match names:
        case TensorNames.LLAMA | TensorNames.OLMO:
            decoder = _llama(config, _QWEN)
        case TensorNames.GPT_OSS:
            decoder = _gpt_oss(config)
        case TensorNames.MIXTRAL:
            decoder = _llama(config, _MIXTRAL)
        case TensorNames.PHI:
            decoder = _fused(list(_llama(config, _QWEN)))
        case TensorNames.GEMMA:
            decoder = (_with_offset(entry) for entry in _llama(config, _QWEN))
        case TensorNames.GPT2:
            decoder = _gpt2(config)
        case TensorNames.VIT:
            return list(_vit(config))
    head = () if config.tied_embeddings else (_single(HEAD_NAME, "output.weight"),)
    return [*decoder, *head]


def _single(theirs: str, *ours: str, expert: int | None = None, transposed: bool = False) -> Theirs:
    return Theirs(name=theirs, ours=ours, expert=expert, transposed=transposed)


def _llama(config: ModelConfig, mixture: _MixtureNames) -> Iterator[Theirs]:
    yield _single("model.embed_tokens.weight", "embedding.weight")
    for layer in range(config.layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        for name, our_name in _LAYER_NORMS[config.norm_placement].items():
            yield _single(f"{theirs}.{name}.weight", f"{ours}.{our_name}.weight")
        for name, our_name in _attention(config).items():
            yield _single(f"{theirs}.self_attn.{name}", f"{ours}.attention.{our_name}")
        if config.has_experts(layer):
            yield from _mixture(
                f"{theirs}.{mixture.block}", f"{ours}.feed_forward", mixture, config
            )
        else:
            yield from _feed_forward(f"{theirs}.mlp", f"{ours}.feed_forward")
    yield _single("model.norm.weight", "norm.weight")


def _feed_forward(theirs: str, ours: str) -> Iterator[Theirs]:
    for name in ("gate", "up", "down"):
        yield _single(f"{theirs}.{name}_proj.weight", f"{ours}.{name}.weight")


_LATENT = {
    "kv_a_proj_with_mqa": "key_value_latent",
    "kv_a_layernorm": "key_value_latent_norm",
    "kv_b_proj": "key_value",
    "o_proj": "output",
}
_QUERY_LATENT = {
    "q_a_proj": "query_latent",
    "q_a_layernorm": "query_latent_norm",
    "q_b_proj": "query",
}


def _attention(config: ModelConfig) -> dict[str, str]:
    """Map the foreign names within attention to ours."""
    latent = config.latent_attention
    if latent is not None:
        queries = {"q_proj": "query"} if latent.query_rank is None else _QUERY_LATENT
        layers = {**queries, **_LATENT}
        return {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in layers.items()}
    projections = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    weights = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in projections.items()}
    biases = {f"{theirs}.bias": f"{ours}.bias" for theirs, ours in projections.items()}
    if config.query_key_norm:
        weights |= {"q_norm.weight": "query_norm.weight", "k_norm.weight": "key_norm.weight"}
    match config.attention_bias:
        case AttentionBias.NONE:
            return weights
        case AttentionBias.INPUTS:
            del biases["o_proj.bias"]
            return weights | biases
        case AttentionBias.ALL:
            return weights | biases


def _gpt_oss(config: ModelConfig) -> Iterator[Theirs]:
    """Yield llama's tensors except for the mixture, whose experts are one tensor there too."""
    for entry in _llama(config, _QWEN):
        if ".mlp." not in entry.name:
            yield entry
    for layer in range(config.layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        yield _single(f"{theirs}.self_attn.sinks", f"{ours}.attention.sinks.weight")
        for kind in ("weight", "bias"):
            yield _single(f"{theirs}.mlp.router.{kind}", f"{ours}.feed_forward.router.{kind}")
        experts = f"{ours}.feed_forward.experts"
        for kind in ("", "_bias"):
            yield Theirs(
                name=f"{theirs}.mlp.experts.gate_up_proj{kind}",
                ours=(f"{experts}.gate{kind}", f"{experts}.up{kind}"),
                interleaved=True,
                transposed=not kind,
            )
            yield _single(
                f"{theirs}.mlp.experts.down_proj{kind}",
                f"{experts}.down{kind}",
                transposed=not kind,
            )


def _with_offset(entry: Theirs) -> Theirs:
    return replace(entry, offset=1.0) if entry.name.endswith("norm.weight") else entry


_FUSED = {
    "q_proj": ("qkv_proj", ("attention.query", "attention.key", "attention.value")),
    "gate_proj": ("gate_up_proj", ("feed_forward.gate", "feed_forward.up")),
}
"""Fused tensors of Phi-3, by the first of the parts."""


def _fused(entries: list[Theirs]) -> Iterator[Theirs]:
    """Yield llama's tensors, with those joined that are stored as one."""
    inside = {f"{name}.weight" for _, names in _FUSED.values() for name in names}
    for entry in entries:
        path, _, last = entry.name.removesuffix(".weight").rpartition(".")
        layer = ".".join(entry.ours[0].split(".")[:2])
        if last in _FUSED:
            name, ours = _FUSED[last]
            yield _single(f"{path}.{name}.weight", *(f"{layer}.{our}.weight" for our in ours))
        elif entry.ours[0].removeprefix(f"{layer}.") not in inside:
            yield entry


def _mixture(theirs: str, ours: str, names: _MixtureNames, config: ModelConfig) -> Iterator[Theirs]:
    yield _single(f"{theirs}.gate.weight", f"{ours}.router.weight")
    if config.corrects_scores:
        correction = _single(f"{theirs}.gate.e_score_correction_bias", f"{ours}.correction")
        yield replace(correction, fp32=True)
    if config.shared_experts:
        yield from _feed_forward(f"{theirs}.shared_experts", f"{ours}.shared")
    for name, our_name in ((names.gate, "gate"), (names.up, "up"), (names.down, "down")):
        for expert in range(config.experts):
            yield _single(
                f"{theirs}.experts.{expert}.{name}.weight",
                f"{ours}.experts.{our_name}",
                expert=expert,
            )


def _gpt2(config: ModelConfig) -> Iterator[Theirs]:
    yield _single("transformer.wte.weight", "embedding.weight")
    yield _single("transformer.wpe.weight", "position_embedding.weight")
    for layer in range(config.layers):
        theirs, ours = f"transformer.h.{layer}", f"layers.{layer}"
        for kind in ("weight", "bias"):
            yield _single(f"{theirs}.ln_1.{kind}", f"{ours}.attention_norm.{kind}")
            yield _single(f"{theirs}.ln_2.{kind}", f"{ours}.feed_forward_norm.{kind}")
            for name, our_names in {
                "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
                "attn.c_proj": ("attention.output",),
                "mlp.c_fc": ("feed_forward.up",),
                "mlp.c_proj": ("feed_forward.down",),
            }.items():
                yield _single(
                    f"{theirs}.{name}.{kind}",
                    *(f"{ours}.{our_name}.{kind}" for our_name in our_names),
                    transposed=kind == "weight",
                )
    for kind in ("weight", "bias"):
        yield _single(f"transformer.ln_f.{kind}", f"norm.{kind}")


_VIT_LAYER = {
    "layernorm_before": "attention_norm",
    "attention.attention.query": "attention.query",
    "attention.attention.key": "attention.key",
    "attention.attention.value": "attention.value",
    "attention.output.dense": "attention.output",
    "layernorm_after": "feed_forward_norm",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
}


def _vit(config: ModelConfig) -> Iterator[Theirs]:
    hidden, side = config.hidden_size, config.patch_size
    patches = "vit.embeddings.patch_embeddings.projection"
    for theirs, ours, shape in (
        ("vit.embeddings.cls_token", "embedding.class_token", (1, 1, hidden)),
        (
            "vit.embeddings.position_embeddings",
            "position_embedding.weight",
            (1, config.image_positions, hidden),
        ),
        (
            f"{patches}.weight",
            "embedding.projection.weight",
            (hidden, config.channels, side, side),
        ),
    ):
        yield replace(_single(theirs, ours), viewed=shape)
    yield _single(f"{patches}.bias", "embedding.projection.bias")
    for kind in ("weight", "bias"):
        for layer in range(config.layers):
            for name, our_name in _VIT_LAYER.items():
                yield _single(
                    f"vit.encoder.layer.{layer}.{name}.{kind}", f"layers.{layer}.{our_name}.{kind}"
                )
        yield _single(f"vit.layernorm.{kind}", f"norm.{kind}")
        yield _single(f"classifier.{kind}", f"output.{kind}")
