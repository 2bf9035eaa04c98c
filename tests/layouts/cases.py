"""The layouts of the training matrix, and few of them in which every two settings meet."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from drumline_contract.config import DataParallel, ParallelismConfig, Schedule, TrainerConfig, merge
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import min_micro_batches, violations

MOST_RANKS = 8
STEPS = 20
BATCH = 16
BASE: dict[str, Any] = {
    "model": {
        "vocab_size": 257,
        "hidden_size": 16,
        "ffn_size": 32,
        "heads": 4,
        "kv_heads": 2,
        "norm_epsilon": 1e-5,
    },
    "data": {"sequence_length": 16},
    "optimizer": {"warmup_steps": 2, "epsilon": 1e-6},
    "checkpoint": {"every_steps": STEPS // 2, "keep": 2},
    "steps": STEPS,
    "global_batch_size": BATCH,
    "log_every_steps": STEPS,
}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {  # and Gemma's variants, which meet every other setting so
        "tied_embeddings": True,
        "attention_bias": "all",
        "query_key_norm": True,
        "norm_placement": "around",
        "activation": "gelu_tanh",
        "scaled_embedding": True,
        "logit_softcap": 30.0,
        "rope_share": 0.5,
        # the norm behind an attention whose output is a thousandth divides by it: with the usual
        # epsilon rounding comes back 300 times as large, and Adam makes steps of it
        "norm_epsilon": 1e-3,
    },
    "untied": {"tied_embeddings": False, "kv_heads": 1},  # tensor ranks share the one
    "gpt2": {"family": "gpt2", "kv_heads": 4},
    "mixture": {
        "experts": 4,
        "experts_per_token": 2,
        "shared_experts": 1,
        "balance_weight": 0.01,
        "tied_embeddings": False,
    },
    "deepseek": {
        "kv_heads": 4,
        "head_size": 12,
        "latent_attention": {
            "query_rank": 10,
            "key_value_rank": 6,
            "turned_size": 4,
            "value_size": 8,
        },
        "experts": 8,
        "experts_per_token": 2,
        "expert_ffn_size": 16,
        "shared_experts": 1,
        "dense_layers": 1,
        "routing": {"scores": "sigmoid", "groups": 4, "groups_per_token": 2, "scale": 2.5},
        "balance_weight": 0.01,
        "tied_embeddings": False,
    },
}
MIXTURES = ("mixture", "deepseek")
DATA: dict[str, tuple[dict[str, Any], int]] = {
    "ddp": ({"data_parallel": "ddp"}, 2),
    "zero1": ({"data_parallel": "zero1"}, 2),
    "zero2": ({"data_parallel": "zero2"}, 2),
    "fsdp": ({"data_parallel": "fsdp"}, 2),
    "hsdp": ({"data_parallel": "fsdp", "replicate": 2}, 4),
}
"""The kinds of data parallelism with their ranks."""
NO_PIPELINE = "no pipeline"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One layout, and the model that it trains."""

    data: str
    tensor: int = 1
    pipeline: str = NO_PIPELINE
    """A schedule over two ranks."""
    context: int = 1
    expert: int = 1
    recompute: str = "none"
    accumulation: int = 1
    """Micro-batches of a step, or what the schedule needs at least."""
    model: str

    @property
    def name(self) -> str:
        """For people and tests."""
        parts = [self.data, f"tp{self.tensor}", self.pipeline, f"cp{self.context}"]
        more = [f"ep{self.expert}", self.recompute, f"x{self.accumulation}", self.model]
        return " · ".join(parts + more)

    @property
    def ranks(self) -> int:
        """Processes."""
        stages = 1 if self.pipeline == NO_PIPELINE else 2
        return DATA[self.data][1] * self.tensor * stages * self.context

    @property
    def parallelism(self) -> dict[str, Any]:
        """How its ranks share the work."""
        output: dict[str, Any] = {
            **DATA[self.data][0],
            "tensor": self.tensor,
            "context": self.context,
            "expert": self.expert,
        }
        if self.pipeline != NO_PIPELINE:
            output |= {"pipeline": 2, "schedule": self.pipeline}
        return output

    @property
    def layout(self) -> Layout:
        """Its ranks."""
        parallelism = ParallelismConfig(
            **{
                **self.parallelism,
                "data_parallel": DataParallel(self.parallelism["data_parallel"]),
                "schedule": Schedule(self.parallelism.get("schedule", Schedule.GPIPE)),
            }
        )
        return Layout.of(parallelism, world_size=self.ranks)

    @property
    def layers(self) -> int:
        """As few as show all: a step takes as long as its collectives, which every layer has.

        A block of recompute is two layers, so some stage must have as many.
        """
        return max(2, self.layout.stages + (self.recompute == "blocks"))

    @property
    def micro_batches(self) -> int:
        """Of a step, on a rank."""
        return max(self.accumulation, min_micro_batches(self.layout))

    @property
    def effort(self) -> int:
        """About how long a step takes: passes of a layer, there, back and there again."""
        passes = (2 if self.recompute == "none" else 3) * (2 if self.model in MIXTURES else 1)
        side_by_side = self.ranks // self.layout.pipeline
        return side_by_side * self.layers * self.micro_batches * passes

    def config(self, **changes: Any) -> TrainerConfig:
        """What its ranks are told."""
        share = BATCH // self.layout.batch_ranks
        memory: dict[str, Any] = {"recompute": self.recompute}
        if self.recompute == "blocks":
            memory["recompute_every"] = 2
        output = {
            "parallelism": self.parallelism,
            "memory": memory,
            "micro_batch_size": max(1, share // self.micro_batches),
        }
        raw = merge(plain(self.model, layers=self.layers), output)
        return TrainerConfig.from_dict(merge(raw, changes))


def plain(model: str, *, layers: int = 2) -> dict[str, Any]:
    """The same training in one process."""
    return merge(merge(BASE, {"model": MODELS[model]}), {"model": {"layers": layers}})


@functools.cache
def every_case() -> tuple[Case, ...]:
    """All that fit."""
    pipelines = (NO_PIPELINE, *map(str, Schedule))
    cases = (
        Case(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            expert=expert,
            recompute=recompute,
            accumulation=accumulation,
            model=model,
        )
        for data, tensor, pipeline, context, expert, recompute, accumulation, model in (
            itertools.product(
                DATA,
                (1, 2),
                pipelines,
                (1, 2),
                (1, 2),
                ("none", "selective", "blocks", "full"),
                (1, 4),
                MODELS,
            )
        )
    )
    return tuple(case for case in cases if _fits(case))


def all_pairs(cases: Sequence[Case], *, seed: int, at_least: int) -> list[Case]:
    """Few, quick cases in which each two settings meet that meet in any (greedy); some at random.

    Effort counts less than in proportion: few cases that take longer begin and end less often.
    """
    generator = random.Random(seed)
    waiting = set(itertools.chain.from_iterable(map(pairs, cases)))
    chosen: list[Case] = []
    while waiting:
        sampled = generator.sample(cases, min(400, len(cases)))
        best = max(sampled, key=lambda case: len(waiting & pairs(case)) / case.effort**0.4)
        if not waiting & pairs(best):
            best = next(case for case in cases if waiting & pairs(case))
        chosen.append(best)
        waiting -= pairs(best)
    more = [case for case in generator.sample(cases, 2 * at_least) if case not in chosen]
    return [*chosen, *more[: max(0, at_least - len(chosen))]]


def pairs(case: Case) -> frozenset[tuple[str, Any, str, Any]]:
    """Every two settings of a case."""
    settings = zip((field.name for field in fields(case)), astuple(case), strict=True)
    return frozenset((*item, *other) for item, other in itertools.combinations(settings, 2))


def _fits(case: Case) -> bool:
    if case.ranks > MOST_RANKS or (case.expert > 1 and case.model not in MIXTURES):
        return False
    return not violations(case.config(), world_size=case.ranks)


def names(cases: Iterable[Case]) -> list[str]:
    """Of tests."""
    return [case.name for case in cases]
