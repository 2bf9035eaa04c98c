"""spec.trainer -> the trainer's own configuration, validated before the job is queued."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from drumline.lifecycle.model.job import CHECKPOINT_FOLDER, DATA_FOLDER, Job
from drumline.lifecycle.model.sizes import allowed_sizes, chooses_layout, data_parallel_size
from drumline_api.overrides import OverridesError
from drumline_api.trainingjob import (
    MODEL_OF_FOLDER,
    MODEL_OF_TRANSFORMERS,
    TrainerSpec,
    TrainingJobSpec,
)
from drumline_contract import Env
from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    Family,
    FolderConfig,
    HardwareConfig,
    TrainerConfig,
    merge,
)
from drumline_contract.layout_validation import ViolationReason, validated_layout, violations
from drumline_planner.auto import check_choosable, is_auto

_MODEL_REASONS = frozenset(
    {
        ViolationReason.HEADS,
        ViolationReason.EXPERT_BIASES,
        ViolationReason.HEAD_NORMS,
        ViolationReason.FFN,
        ViolationReason.SEQUENCE,  # a model of images does not read it
        ViolationReason.POSITIONS,
        ViolationReason.IMAGES,
        ViolationReason.SCORES,
        ViolationReason.WINDOWS,
        ViolationReason.LAYERS,
        ViolationReason.NO_EXPERTS,
        ViolationReason.EXPERTS,
    }
)
"""Violations that another model might not have. Only the ranks read the model of a folder."""


def trainer_config(
    spec: TrainingJobSpec, hardware: HardwareConfig | None = None
) -> TrainerConfig | FolderConfig:
    """Return the configuration of every rank, without the model if a folder describes it.

    Args:
        spec: spec of the job.
        hardware: GPUs and network that its pool declares. Overrides win.

    Raises:
        ConfigError: the model is unknown, an override is not a field of the trainer's schema, or
            the batch does not split over the ranks. The message names the field under spec.trainer.
    """
    # Phase 1: the job's fields, the pool's hardware and the overrides, in this order.
    if spec.trainer is None:
        raise ConfigError("trainer is missing; set trainer or template")
    base = _base(spec, spec.trainer)
    if hardware is not None:
        base["hardware"] = asdict(hardware)
    raw = merge(base, _overrides(spec.trainer))
    # Phase 2: without the model, only rules that hold for every model can be checked.
    if spec.trainer.model in (MODEL_OF_FOLDER, MODEL_OF_TRANSFORMERS):
        described = FolderConfig.from_dict(raw)
        if not is_auto(described.settings):
            for size in allowed_sizes(spec):
                _check_for_any_model(described.settings, world_size=size * spec.gpus_per_node)
        return described
    config = TrainerConfig.from_dict(raw)
    # Phase 3: every allowed size must have a legal layout, because the gang may get any of them.
    if is_auto(config):
        check_choosable(config, world_size=spec.nodes * spec.gpus_per_node)
        return config
    for size in allowed_sizes(spec):
        validated_layout(config, world_size=size * spec.gpus_per_node)
    return config


def _check_for_any_model(config: TrainerConfig, *, world_size: int) -> None:
    """Raise ConfigError if a layout is illegal with every model."""
    for violation in violations(config, world_size=world_size):
        if violation.reason not in _MODEL_REASONS:
            raise ConfigError(violation.text)


def _overrides(trainer: TrainerSpec) -> dict[str, Any]:
    try:
        return {} if trainer.overrides is None else trainer.overrides.decoded()
    except OverridesError as error:
        raise ConfigError(f"trainer.overrides: {error}") from None


def _base(spec: TrainingJobSpec, trainer: TrainerSpec) -> dict[str, Any]:
    data: dict[str, Any] = {"sequence_length": trainer.sequence_length}
    if trainer.data is not None:
        data["source"] = f"{DATA_FOLDER}/{trainer.data.path}".rstrip("/")
        data["pattern"] = trainer.data.pattern
    # Phase 1: fields that every job has.
    base: dict[str, Any] = {
        "model": _model(trainer.model),
        "steps": trainer.steps,
        "global_batch_size": trainer.global_batch_size,
        "precision": trainer.precision,
        "seed": trainer.seed,
        "data": data,
    }
    # Phase 2: fields that the trainer has defaults for.
    if trainer.parallelism is not None:
        # The API writes modes in CamelCase, the trainer in lower case.
        written = trainer.parallelism.model_dump()
        base["parallelism"] = written | {"mode": trainer.parallelism.mode.lower()}
    if trainer.micro_batch_size is not None:
        base["micro_batch_size"] = trainer.micro_batch_size
    elif spec.min_nodes is not None and not chooses_layout(spec):  # fewer ranks take more
        parts = data_parallel_size(trainer, ranks=spec.nodes * spec.gpus_per_node)
        base["micro_batch_size"] = max(1, trainer.global_batch_size // max(1, parts))
    if spec.checkpoint is not None:
        saving = {"every_steps": spec.checkpoint.every_steps, "keep": spec.checkpoint.keep}
        named = spec.checkpoint.continue_from
        base["checkpoint"] = {**saving, "continue_from": named} if named else saving
    return base


def _model(name: str) -> dict[str, Any]:
    """Return the shape of a built-in model. A folder describes its model itself."""
    if name == MODEL_OF_FOLDER:
        return {}
    if name == MODEL_OF_TRANSFORMERS:
        return {"family": Family.TRANSFORMERS.value}
    preset = MODEL_PRESETS.get(name)
    if preset is None:
        known = ", ".join((*MODEL_PRESETS, MODEL_OF_FOLDER, MODEL_OF_TRANSFORMERS))
        raise ConfigError(f"trainer.model: {name!r} is unknown; use one of {known}")
    return asdict(preset)


def trainer_variables(job: Job, hardware: HardwareConfig | None) -> dict[str, str]:
    """Return the environment variables that the ranks of the bundled trainer read.

    Raises:
        ConfigError: as `trainer_config`.
    """
    config = trainer_config(job.spec, hardware)
    return {
        Env.CONFIG: json.dumps(config.written(), sort_keys=True, separators=(",", ":")),
        Env.CHECKPOINT_FOLDER: checkpoint_folder(job.spec, name=job.name, uid=job.uid) or "",
    }


def checkpoint_folder(spec: TrainingJobSpec, *, name: str, uid: str) -> str | None:
    """Return the job's checkpoint folder: a path in its pods or a bucket's URL.

    Args:
        spec: the job's spec.
        name: the job's name.
        uid: the job's uid.
    """
    if spec.checkpoint is None:
        return None
    top = spec.checkpoint.bucket or CHECKPOINT_FOLDER
    return f"{top}/{checkpoint_path(spec.checkpoint.path, name=name, uid=uid)}"


def checkpoint_path(path: str, *, name: str, uid: str) -> str:
    """Return the checkpoint folder inside the claim, or the prefix below the bucket's prefix.

    Without spec.checkpoint.path its name contains the job's uid, so that a new job of the same name
    never continues an earlier run by accident; with a path it does so on purpose.

    Args:
        path: spec.checkpoint.path. Empty if it is unset.
        name: the job's name.
        uid: the job's uid.
    """
    return path or f"{name}-{uid[:8]}"
