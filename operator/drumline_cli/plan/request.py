"""Convert the arguments to a goal of the planner."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from drumline_cli.errors import BadInput
from drumline_cli.manifests import read_text
from drumline_cli.plan.job_file import JobFile, read_job
from drumline_contract.config import (
    ConfigError,
    DataConfig,
    DataParallel,
    LoraConfig,
    MemoryConfig,
    ModelConfig,
    Offload,
    Precision,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_contract.hardware import GpuCluster, named_gpu, named_link, unknown
from drumline_planner import model_source
from drumline_planner.auto import goal_of, is_auto
from drumline_planner.machine import link_of, wiring_of
from drumline_planner.network import Topology, Wiring, cluster_of
from drumline_planner.space import Choice, Goal, Outer

# About a million GPUs. A larger number is a mistake, and the search would take too long.
_MOST_GPUS = 1 << 20
_GPU = "H100"
_NETWORK = "infiniband-ndr"
# Defaults for a compared layout: no parallelism except the sharded data parallelism.
_COMPARED = {
    "data_parallel": DataParallel.FSDP.value,
    "replicate": "1",
    "tensor": "1",
    "pipeline": "1",
    "schedule": Schedule.ONE_F_ONE_B.value,
    "stages_per_rank": "",
    "context": "1",
    "expert": "1",
    "micro_batch": "1",
    "recompute": Recompute.NONE.value,
    "offload_activations": Offload.NONE.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Goal of the plan, and the number of GPUs."""

    title: str
    name: str
    """Name of the model."""
    goal: Goal
    """Goal for the largest number of GPUs."""
    sizes: tuple[int, ...]
    compared: tuple[Choice, ...]
    compared_texts: tuple[str, ...]
    """Compared layouts as the user wrote them."""
    job: JobFile | None
    """A TrainingJob that was read, with the layout that it has now."""


def read_request(chosen: argparse.Namespace) -> PlanRequest:
    """Read files and check values.

    Raises:
        BadInput: a file or a value is not usable; names the field and what would work.
    """
    try:
        return _request(chosen)
    # The planner names the field. Only the type of the error changes here.
    except ConfigError as error:
        raise BadInput(str(error)) from None


def cluster_for(chosen: argparse.Namespace, gpus: int, *, job: JobFile | None = None) -> GpuCluster:
    """Return a cluster of `gpus` GPUs. Arguments override the job's GpuPool and the defaults.

    Args:
        chosen: parsed arguments.
        gpus: number of GPUs.
        job: job file whose GpuPool describes the GPUs.

    Raises:
        ConfigError: a name is unknown, or a size is not positive.
    """
    # Three sources in this order: arguments, the pool of the job, and the defaults.
    pool = job.hardware.config if job is not None and job.hardware is not None else None
    domain = chosen.domain if chosen.domain is not None else pool and pool.domain_gpus
    per_node = job.spec.gpus_per_node if job is not None else 8
    if chosen.gpus_per_node is not None:
        per_node = chosen.gpus_per_node
    network = chosen.network or _NETWORK
    # A group or an oversubscription that the user sets overrides the pool's.
    wiring = replace(wiring_of(pool) if pool else Wiring(), topology=Topology(chosen.topology))
    if chosen.group is not None:
        wiring = replace(wiring, group=chosen.group, oversubscription=1.0)
    if chosen.oversubscription != 1:
        wiring = replace(wiring, oversubscription=chosen.oversubscription)
    # Without groups no traffic leaves one, so neither option would have an effect.
    if wiring.group == Wiring().group and wiring != Wiring():
        raise ConfigError(
            "--oversubscription and --topology need --group: set the number of GPUs below a leaf"
            " switch, or per dragonfly group"
        )
    return cluster_of(
        named_gpu(chosen.gpu or (pool and pool.gpu) or _GPU),
        gpus=gpus,
        # An explicit network also overrides the link of the pool.
        network=link_of(pool) if pool and not chosen.network else named_link(network),
        inside=None if chosen.inside is None else named_link(chosen.inside, field_name="--inside"),
        gpus_per_node=per_node,
        domain=domain,
        wiring=wiring,
    )


def _request(chosen: argparse.Namespace) -> PlanRequest:
    # Phase 1: the model and the sizes. The largest size decides the cluster.
    name, config, job = _config(chosen)
    sizes = _sizes(chosen.gpus or str(job.gpus if job is not None else 8))
    if not 0 <= chosen.reserve < 1:
        raise ConfigError(f"--reserve must be at least 0 and below 1, got {chosen.reserve:g}")
    cluster = cluster_for(chosen, sizes[-1], job=job)
    # Phase 2: make the goal. A configuration with an automatic layout defines its own goal.
    if is_auto(config):
        goal = goal_of(config, cluster)
    else:
        goal = Goal(config=config, cluster=cluster, host_activations=True)
    # Phase 3: the reserve and the pool's measured corrections.
    goal = replace(goal, reserve=float(chosen.reserve))
    # Corrections apply only to the hardware on which they were measured.
    if job is not None and chosen.gpu is None:
        goal = replace(goal, constants=job.constants)
    return PlanRequest(
        title=f"{name} on {sizes[-1]} x {goal.cluster.gpu.name}",
        name=name,
        goal=goal,
        sizes=sizes,
        compared=tuple(_choice(text) for text in chosen.compare),
        compared_texts=tuple(chosen.compare),
        job=None if job is None else replace(job, config=config),
    )


def _config(chosen: argparse.Namespace) -> tuple[str, TrainerConfig, JobFile | None]:
    """Return a name, the configuration, and the job that it is of."""
    # Both or neither would leave the model ambiguous.
    if (chosen.model is None) == (chosen.dimensions is None):
        raise ConfigError("give exactly one of MODEL and --dimensions")
    if chosen.like is not None and not str(chosen.model).endswith((".yaml", ".yml")):
        raise ConfigError("--like needs a TrainingJob whose model comes from a folder")
    if chosen.dimensions is not None:
        return "a model", _adjusted(chosen, model_source.from_sizes(chosen.dimensions)), None
    name: str = chosen.model
    # The file name decides the kind, because a preset has no dot-yaml ending.
    if name.endswith((".yaml", ".yml")):
        job = read_job(name, like=None if chosen.like is None else _model(chosen.like))
        return name, _overridden(chosen, job.config), job
    return name, _adjusted(chosen, _model(name)), None


def _model(name: str) -> ModelConfig:
    """Return the model of a config.json, or a built-in one.

    Raises:
        ConfigError: the model is invalid.
        BadInput: the file cannot be read.
    """
    # A config.json of Hugging Face describes the dimensions of a model.
    if name.endswith(".json"):
        return model_source.from_hugging_face(_json(name))
    return model_source.preset(name)


def _adjusted(chosen: argparse.Namespace, model: ModelConfig) -> TrainerConfig:
    # Common values of a pretraining run. Options override each of them.
    base = TrainerConfig(
        model=model,
        data=DataConfig(sequence_length=4096),
        global_batch_size=256,
        precision=Precision.BF16,
    )
    return _overridden(chosen, base)


def _overridden(chosen: argparse.Namespace, config: TrainerConfig) -> TrainerConfig:
    memory = config.memory
    # Offloading replaces the whole memory setting but keeps the recomputation.
    if chosen.offload_optimizer:
        memory = MemoryConfig(recompute=memory.recompute, offload_optimizer=Offload.CPU)
    data = config.data
    if chosen.sequence is not None:
        data = replace(data, sequence_length=chosen.sequence)
    batch = config.global_batch_size
    if chosen.batch is not None:
        batch = chosen.batch
    lora = config.lora
    if chosen.lora is not None:
        lora = LoraConfig(rank=chosen.lora)
    return replace(
        config,
        data=data,
        global_batch_size=batch,
        precision=Precision(chosen.precision) if chosen.precision else config.precision,
        # fp8 can only be switched on, because a flag has no negative form.
        fp8=config.fp8 or chosen.fp8,
        lora=lora,
        memory=memory,
    )


def _json(name: str) -> Mapping[str, Any]:
    text, _ = read_text(name)
    # A real config.json has a few KiB. The bound protects the parser.
    if len(text) > 1 << 20:
        raise BadInput(f"{name}: a config.json must have less than 1 MiB, got {len(text)} bytes")
    try:
        raw: object = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise BadInput(f"{name}: a config.json must be an object")
    return cast("Mapping[str, Any]", raw)


def _sizes(text: str) -> tuple[int, ...]:
    """`64`, or `8..1024`: doubled from the first to the last."""
    first, dots, last = text.partition("..")
    try:
        # One number is a range of one size.
        low, high = int(first), int(last) if dots else int(first)
    except ValueError:
        raise ConfigError(
            f"--gpus must be a number or a range such as 8..1024, got {text!r}"
        ) from None
    if not 1 <= low <= high <= _MOST_GPUS:
        raise ConfigError(f"--gpus must be between 1 and {_MOST_GPUS} and increase, got {text}")
    sizes: list[int] = []
    # Doubling covers the range with few plans. Each plan takes seconds.
    while low <= high:
        sizes.append(low)
        low *= 2
    return tuple(sizes)


def _choice(text: str) -> Choice:
    """Return a layout written as `tensor=8,pipeline=4`."""
    # Start from defaults, so that a user names only the interesting fields.
    values, given = dict(_COMPARED), set[str]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in values:
            raise ConfigError(unknown("--compare", name, _COMPARED))
        if not equals:
            raise ConfigError(
                f"--compare: {name} has no value; for example {name}={values[name] or 2}"
            )
        # A repeated name is a typing mistake. The last value would win silently.
        if name in given:
            raise ConfigError(f"--compare: {name} is given twice")
        values[name] = value
        given.add(name)
    schedule = _member(Schedule, "schedule", values)
    # An interleaved schedule needs at least two stages per rank.
    stages = values["stages_per_rank"] or ("2" if schedule.interleaves else "1")

    def number(name: str) -> int:
        if not values[name].isdecimal() or int(values[name]) < 1:
            raise ConfigError(f"--compare {name}: must be a number above 0, got {values[name]!r}")
        return int(values[name])

    values["stages_per_rank"] = stages
    return Choice(
        outer=Outer(
            tensor=number("tensor"),
            pipeline=number("pipeline"),
            context=number("context"),
            expert=number("expert"),
            micro_batch=number("micro_batch"),
            recompute=_member(Recompute, "recompute", values),
            on_host=_on_host(values["offload_activations"]),
        ),
        schedule=schedule,
        stages_per_rank=number("stages_per_rank"),
        kind=_member(DataParallel, "data_parallel", values),
        replicate=number("replicate"),
    )


def _on_host(value: str) -> bool:
    places = {Offload.NONE.value: False, Offload.CPU.value: True}
    if value not in places:
        raise ConfigError(unknown("--compare offload_activations", value, places))
    return places[value]


def _member(kind: Any, name: str, values: Mapping[str, str]) -> Any:
    # The error lists the legal values, so users need not open the docs.
    legal = [member.value for member in kind]
    if values[name] not in legal:
        raise ConfigError(unknown(f"--compare {name}", values[name], legal))
    return kind(values[name])
