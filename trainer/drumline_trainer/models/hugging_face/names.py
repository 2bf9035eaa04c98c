"""Which of their tensors is made of which of ours.

Most are one to one. GPT-2 keeps query, key and value in one tensor and the matrices of its layers
transposed; Qwen 3 MoE keeps every expert's matrices apart, where ours are one tensor for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from drumline_trainer.config import Family, ModelConfig
from drumline_trainer.models.build import build_on_meta

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """One of their tensors."""

    name: str
    ours: tuple[str, ...]
    """Names of our tensors that lie in it one after another along dimension 0."""
    expert: int | None = None
    """Which row of ours, where that holds all experts."""
    transposed: bool = False

    def shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Of this tensor, by the shapes of ours."""
        rows = [self.rows(name, shapes) for name in self.ours]
        rest = shapes[self.ours[0]][1:] if self.expert is None else shapes[self.ours[0]][2:]
        whole = (sum(rows), *rest)
        return whole[::-1] if self.transposed else whole

    def rows(self, ours: str, shapes: Shapes) -> int:
        """How many rows this tensor of ours has in it."""
        return shapes[ours][0 if self.expert is None else 1]


def our_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of every parameter by name."""
    model = build_on_meta(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def their_tensors(config: ModelConfig) -> list[Theirs]:
    """All of them; the experts of one of our tensors follow each other."""
    decoder = _gpt2(config) if config.family is Family.GPT2 else _llama(config)
    head = () if config.tied_embeddings else (_single("lm_head.weight", "output.weight"),)
    return [*decoder, *head]


def _single(theirs: str, *ours: str, expert: int | None = None, transposed: bool = False) -> Theirs:
    return Theirs(name=theirs, ours=ours, expert=expert, transposed=transposed)


def _llama(config: ModelConfig) -> Iterator[Theirs]:
    yield _single("model.embed_tokens.weight", "embedding.weight")
    for layer in range(config.layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        yield _single(f"{theirs}.input_layernorm.weight", f"{ours}.attention_norm.weight")
        attention = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
        if config.query_key_norm:
            attention |= {"q_norm": "query_norm", "k_norm": "key_norm"}
        for name, our_name in attention.items():
            yield _single(
                f"{theirs}.self_attn.{name}.weight", f"{ours}.attention.{our_name}.weight"
            )
        yield _single(
            f"{theirs}.post_attention_layernorm.weight", f"{ours}.feed_forward_norm.weight"
        )
        if config.experts:
            yield from _experts(f"{theirs}.mlp", f"{ours}.feed_forward", count=config.experts)
        else:
            for name in ("gate", "up", "down"):
                yield _single(
                    f"{theirs}.mlp.{name}_proj.weight", f"{ours}.feed_forward.{name}.weight"
                )
    yield _single("model.norm.weight", "norm.weight")


def _experts(theirs: str, ours: str, *, count: int) -> Iterator[Theirs]:
    yield _single(f"{theirs}.gate.weight", f"{ours}.router.weight")
    for name in ("gate", "up", "down"):
        for expert in range(count):
            yield _single(
                f"{theirs}.experts.{expert}.{name}_proj.weight",
                f"{ours}.experts.{name}",
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
