"""The configuration that a checkpoint was saved with, beside the one of the run that goes on.

Weights of one shape may be of different models: with another number of heads, epsilon or base of
the rotary positions they compute something else, and nothing fails. So the models are compared by
what they compute. All else may change between two runs, and is said.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from drumline_contract.config.decoding import decode, differing
from drumline_contract.config.equivalence import canonical
from drumline_contract.config.errors import ConfigError
from drumline_contract.config.model import ModelConfig
from drumline_contract.config.trainer import TrainerConfig

WITHOUT_INFLUENCE: Final = frozenset(
    {
        *(
            "steps",
            "epochs",
            "micro_batch_size",
            "log_every_steps",
            "heartbeat_seconds",
            "model_from",
        ),
        "config_from",
        *("deterministic", "compile"),
        *("checkpoint", "parallelism", "memory", "hardware", "metrics", "profile"),
        "data.cache_bytes",
    }
)
"""Fields and sections that change no loss but by rounding, or that something else compares: steps
and epochs change the learning rate, which `optimization.learning_rate` says."""
_MOST_NAMED: Final = 8


def refuse_other_model(saved: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise ConfigError where a checkpoint's weights mean another model than this one.

    Args:
        saved: the trainer's own state in the checkpoint. Fields that it lacks, as they came later,
            were what their defaults are.
        model: what its weights are to be used for.
    """
    stored = saved_configuration(saved)
    if stored is None:
        return
    try:
        there = decode(ModelConfig, stored.get("model", {}), path="model.")
    except ConfigError as error:
        raise ConfigError(
            f"model: the checkpoint's own configuration cannot be read here ({error}); it was saved"
            " by another version of the trainer"
        ) from error
    disagreements = list(_differing(canonical(there), canonical(model), path="model."))
    if disagreements:
        raise ConfigError(
            f"model: the checkpoint holds another model: {_listed(disagreements)}; to begin another"
            " model from these weights, export them and name that folder in model_from"
        )


def refuse_other_average(saved: Mapping[str, Any], *, average_decay: float) -> None:
    """Raise ConfigError where one of a checkpoint and a run averages weights, and one does not."""
    match saved_configuration(saved):
        case {"optimizer": {"average_decay": float() | int() as there}}:
            pass
        case None:
            return
        case _:
            there = 0.0  # it is older than averages
    if bool(there) is not bool(average_decay):
        holds = "holds an" if there else "holds no"
        raise ConfigError(
            f"optimizer.average_decay: the checkpoint {holds} average of the weights; go on with"
            f" {there:g}, or begin anew from an export"
        )


def changed_settings(saved: Mapping[str, Any], config: TrainerConfig) -> str:
    """What a run does otherwise than the one that saved, for its log; empty where nothing is."""
    try:
        there = saved_trainer_configuration(saved)
    except ConfigError as error:
        return f"the checkpoint's settings cannot be compared: {error}"
    if there is None:
        return ""
    return _listed(list(_differing(there, config, path="")))


def saved_trainer_configuration(saved: Mapping[str, Any]) -> TrainerConfig | None:
    """Decoded. None where the checkpoint does not have it.

    Raises:
        ConfigError: it cannot be read here.
    """
    stored = saved_configuration(saved)
    return None if stored is None else TrainerConfig.from_dict(dict(stored))


def model_digest(model: ModelConfig) -> str:
    """Of what a model computes, 16 hex digits; a field that comes later does not change it."""
    written = json.dumps(differing(canonical(model)), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def saved_configuration(saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """As JSON values; None where the checkpoint does not have it."""
    match saved.get("config"):
        case {} as stored:
            return stored
        case _:
            return None


def _differing(there: Any, here: Any, *, path: str) -> Iterator[str]:
    for field in dataclasses.fields(here):
        name = f"{path}{field.name}"
        theirs, ours = getattr(there, field.name), getattr(here, field.name)
        if theirs == ours or name in WITHOUT_INFLUENCE:
            continue
        if field.name == "config_json":
            yield from _differing_keys(theirs, ours)
            continue
        if is_dataclass(theirs) and is_dataclass(ours):
            yield from _differing(theirs, ours, path=f"{name}.")
        else:
            yield f"{name} is {_shown(theirs)} there and {_shown(ours)} here"


def _differing_keys(there: str, here: str) -> Iterator[str]:
    """Of two config.json."""
    theirs, ours = (json.loads(text or "{}") for text in (there, here))
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            yield f"config.json's {key} is {theirs.get(key)} there and {ours.get(key)} here"


def _shown(value: Any) -> str:
    return "set" if is_dataclass(value) else str(value)


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return "; ".join(names[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
