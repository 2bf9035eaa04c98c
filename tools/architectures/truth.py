"""A tiny model of each type trained by our assembly and by a plain loop of transformers.

Three steps of SGD from the same weights on the same tokens. What is compared are the losses of the
steps, and the loss of windows of several documents with that of each document alone.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.transformers.module import (
    CausalModule,
    imported_library,
    weight_count,
)
from drumline_trainer.models.transformers.sight import check_sight
from drumline_trainer.models.transformers.weights import fill_slices
from drumline_trainer.optimization.gradient_clipping import clip_gradients
from drumline_trainer.parallelism.tensor_parallel.replicas import check_replicas
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.world import World
from tools.architectures.tiny import WORDS, tiny

CPU: Final = torch.device("cpu")
STEPS: Final = 3
RATE: Final = 0.1
LOSS_TOLERANCE: Final = 1e-5
YES: Final = "yes"
ROWS, LENGTH = 4, 16
SPLITS: Final = (5, 11)
"""Where the second and third document of every window begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one model type."""

    model_type: str
    class_name: str = ""
    weights: int = 0
    error: float = 0.0
    """Largest relative difference of a loss on one rank or on two."""
    documents: str = ""
    """How documents of a window are kept apart: by its masks, or as rows."""
    reason: str = ""
    """Why it is not trained; empty: it is."""
    tensor: str = ""
    """YES if two tensor ranks train it, otherwise the reason."""

    @property
    def trains(self) -> bool:
        """Whether the losses are those of the plain loop."""
        return not self.reason and self.error <= LOSS_TOLERANCE


def model_types() -> list[str]:
    """Of every causal language model of the installed library."""
    return sorted(kind.model_type for kind in imported_library().MODEL_FOR_CAUSAL_LM_MAPPING)


def configuration(described: Any) -> TrainerConfig:
    """Return the configuration of a run of a tiny model with fsdp."""
    raw = described.to_dict()
    text = json.dumps({"model_type": described.model_type, **raw}, default=str)
    return TrainerConfig.from_dict(
        {
            "model": {"family": "transformers", "config_json": text, "vocab_size": WORDS},
            "optimizer": {
                "kind": "sgd",
                "learning_rate": RATE,
                "weight_decay": 0.0,
                "momentum": 0.0,
            },
            "global_batch_size": ROWS,
            "data": {"sequence_length": LENGTH},
        }
    )


def outcomes(placement: Placement, names: Sequence[str]) -> Iterator[Outcome]:
    """Train each type on one rank and on this gang; rank 0's are whole. Joins, then leaves."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    try:
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield _outcome(name, placement)
            gc.collect()
    finally:
        dist.destroy_process_group()


def _outcome(name: str, placement: Placement) -> Outcome:
    """Alone first, on rank 0; what fails there is not tried on all."""
    theirs: list[Any] = [Outcome(model_type=name), None, None]
    if placement.rank == 0:
        theirs = _alone(theirs[0])
    dist.broadcast_object_list(theirs)
    outcome, config, losses = theirs
    if outcome.reason:
        return outcome
    try:
        error = _error(_trained(config, placement.world_size, placement.rank), losses)
    except Exception as failure:  # noqa: BLE001 - the reason stands in the table
        return replace(outcome, reason=f"{placement.world_size} ranks: {line_of(failure)}")
    tensor = _by_tensor(config, placement, losses)
    return replace(outcome, error=max(error, outcome.error), tensor=tensor)


def _by_tensor(config: TrainerConfig, placement: Placement, losses: Sequence[float]) -> str:
    """Train by the library's plan. Return YES if the losses equal those of the plain loop."""
    degrees = replace(config.parallelism, tensor=placement.world_size)
    config = replace(config, parallelism=degrees)
    try:
        error = _error(_trained(config, placement.world_size, placement.rank), losses)
    except ConfigError as refused:
        return "no plan" if "has no plan" in str(refused) else line_of(refused)
    except Exception as failure:  # noqa: BLE001 - the reason stands in the table
        return line_of(failure)
    return YES if error <= LOSS_TOLERANCE else f"losses {error:.0e} apart"


def _alone(outcome: Outcome) -> list[Any]:
    """The outcome on one rank, the configuration, and the losses of the plain loop."""
    try:
        described = tiny(imported_library().CONFIG_MAPPING[outcome.model_type])
        config = configuration(described)
    except Exception as error:  # noqa: BLE001 - the reason stands in the table
        return [replace(outcome, reason=f"no tiny configuration: {line_of(error)}"), None, None]
    try:
        plain = _plain_module(config)
        model, world = _assembled(config, 1, 0)
        (module,) = model.stages
        outcome = replace(outcome, class_name=type(module).__name__, weights=weight_count(module))
        check_sight(cast("CausalModule", module), words=WORDS, device=CPU)
        outcome = replace(outcome, documents=how_documents(module))
        _check_documents(model, plain)
        theirs = list(_plain_losses(plain))
        error = _error(list(_our_losses(model, config, world)), theirs)
    except Exception as error:  # noqa: BLE001 - the reason stands in the table
        return [replace(outcome, reason=line_of(error)), None, None]
    return [replace(outcome, error=error), config, theirs]


def _trained(config: TrainerConfig, ranks: int, rank: int) -> list[float]:
    model, world = _assembled(config, ranks, rank)
    check_sight(cast("CausalModule", model.stages[0]), words=WORDS, device=CPU)
    model.weights.refresh_copies()
    return list(_our_losses(model, config, world))


def _assembled(config: TrainerConfig, ranks: int, rank: int) -> tuple[ParallelModel, World]:
    layout = validated_layout(config, world_size=ranks)
    if ranks == 1:
        world = World(layout=layout, rank=rank, device=CPU)
    else:
        world = World.join(layout, device=CPU)
    model = assemble(config, world)
    (module,) = model.stages
    fill_slices(model.slices, module, config=config)
    model.weights.refresh_copies()
    return model, world


def _error(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference; infinite where a loss is no number."""
    error = max(abs(our / their - 1) for our, their in zip(ours, theirs, strict=True))
    return error if math.isfinite(error) else math.inf


def tokens(step: int) -> Tensor:
    """Of the global batch of a step, one more than a window has."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(3, WORDS, (ROWS, LENGTH + 1), generator=generator)


def _our_losses(model: ParallelModel, config: TrainerConfig, world: World) -> Iterator[float]:
    optimizer = build_optimizer(model.slices, config.optimizer, world)
    for step in range(STEPS):
        rows = ROWS // world.layout.batch_ranks
        first = world.index(Axis.DATA) * rows
        own = tokens(step)[first : first + rows]
        torch.manual_seed(step)
        model.begin_step(targets=ROWS * LENGTH)
        loss = model.micro_batch_loss(own[:, :-1], own[:, 1:], ())
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        gradients = model.gradients()
        if (group := world.group(Axis.TENSOR)) is not None:
            check_replicas(cast("CausalModule", model.stages[0]), model.slices, gradients, group)
        totals = clip_gradients(
            model.slices, gradients, loss=loss.detach(), world=world, max_norm=1.0
        )
        yield totals.loss
        optimizer.update(gradients, rate=RATE)
        model.weights.refresh_copies()


def _plain_module(config: TrainerConfig) -> nn.Module:
    """As a script of transformers makes it."""
    library = imported_library()
    raw = json.loads(config.model.config_json)
    described = library.CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    torch.manual_seed(config.seed)
    return library.AutoModelForCausalLM.from_config(described, dtype=torch.float32).train()


def _plain_losses(module: nn.Module) -> Iterator[float]:
    learning = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=RATE)
    for step in range(STEPS):
        batch = tokens(step)
        torch.manual_seed(step)
        logits = module(input_ids=batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        yield float(loss.detach())


def how_documents(module: nn.Module) -> str:
    """By which of the two ways a module keeps documents apart."""
    return "masks" if getattr(module, "documents_apart", False) else "rows"


@torch.no_grad()
def _check_documents(model: ParallelModel, plain: nn.Module) -> None:
    """Raise ValueError where windows of several documents are not what each is alone."""
    (module,) = model.stages
    module.eval()
    plain.eval()
    inputs, targets = tokens(9)[:, :-1], tokens(9)[:, 1:]
    bounds = (0, *SPLITS, LENGTH)
    runs = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    ids = np.concatenate([np.full(r.stop - r.start, n, np.int32) for n, r in enumerate(runs)])
    places = np.concatenate([np.arange(r.stop - r.start, dtype=np.int32) for r in runs])
    documents = Documents.of(np.tile(ids, (ROWS, 1)), np.tile(places, (ROWS, 1)))
    ours = model.held_out_loss(inputs, targets, (documents,))
    theirs = torch.zeros(())
    for run in runs:
        logits = plain(input_ids=inputs[:, run], use_cache=False).logits
        theirs += F.cross_entropy(
            logits.flatten(0, 1).float(), targets[:, run].flatten(), reduction="sum"
        )
    module.train()
    plain.train()
    error = abs(float(ours / theirs) - 1)
    if not error <= LOSS_TOLERANCE:
        how = how_documents(module)
        raise ValueError(f"the loss of documents ({how}) is {error:.1e} from that of each alone")


def line_of(error: Exception) -> str:
    """Type and message on one line."""
    text = " ".join(str(error).split())
    return text[:160] if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"[:160]
