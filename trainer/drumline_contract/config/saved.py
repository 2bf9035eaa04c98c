"""The configuration that a checkpoint was saved with, compared with that of the resumed run.

Weights of one shape can belong to different models. Another number of heads, epsilon or rotary base
changes the results, and nothing fails. So models are compared by what they compute. Other settings
may change between two runs, and the changes are logged.
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
_MAX_NAMED: Final = 8


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
    # Canonical models: two ways to write one function are equal.
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
    """Describe settings that differ from the checkpoint's, for the log. Empty: none differ."""
    try:
        there = saved_trainer_configuration(saved)
    except ConfigError as error:
        return f"the checkpoint's settings cannot be compared: {error}"
    if there is None:
        return ""
    return _listed(list(_differing(there, config, path="")))


def saved_trainer_configuration(saved: Mapping[str, Any]) -> TrainerConfig | None:
    """Decode the configuration of a checkpoint. None: the checkpoint has none.

    Raises:
        ConfigError: this version cannot read the configuration.
    """
    stored = saved_configuration(saved)
    return None if stored is None else TrainerConfig.from_dict(dict(stored))


def model_digest(model: ModelConfig) -> str:
    """Hash the function that a model computes, as 16 hex digits.

    Only settings that differ from their defaults are hashed, so a new field does not change the
    hash.
    """
    # Canonical and without defaults, so that versions agree.
    written = json.dumps(differing(canonical(model)), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def saved_configuration(saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the checkpoint's configuration as JSON values. None: it has none."""
    match saved.get("config"):
        case {} as stored:
            return stored
        case _:
            return None


def _differing(there: Any, here: Any, *, path: str) -> Iterator[str]:
    for field in dataclasses.fields(here):
        name = f"{path}{field.name}"
        theirs, ours = getattr(there, field.name), getattr(here, field.name)
        # Sections without influence are skipped with all their fields.
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
    """Describe the keys in which two config.json differ."""
    theirs, ours = (json.loads(text or "{}") for text in (there, here))
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            yield f"config.json's {key} is {theirs.get(key)} there and {ours.get(key)} here"


def _shown(value: Any) -> str:
    return "set" if is_dataclass(value) else str(value)


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return "; ".join(names[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
