"""A TrainingJob's YAML as a request: its configuration, and the GpuPool beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline.controller.jobs.conversion import gang_of
from drumline.controller.pools.calibration import known_parts
from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline.lifecycle.model.hardware import PoolHardware, largest_hardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.acceptance import judge
from drumline_api.gpupool import GpuPoolSpec, GpuPoolStatus
from drumline_api.load import ApiError, Model, parse
from drumline_api.spec_rules import broken_rules
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_api.unknown_fields import unknown_fields
from drumline_cli.errors import BadInput
from drumline_cli.manifests import ManifestDocument, read_manifests
from drumline_cli.validation import refusals
from drumline_contract import StepPart
from drumline_contract.config import ConfigError, FolderConfig, ModelConfig, TrainerConfig
from drumline_contract.hardware import named_gpu
from drumline_contract.layout_validation import validated_layout
from drumline_planner.auto import is_auto
from drumline_planner.calibration import calibrated, rescaled
from drumline_planner.constants import CALIBRATED, Constants
from drumline_scheduler.model import Gang

_OF_SIZES: Final = ("spec.trainer.parallelism", "spec.trainer.globalBatchSize")
"""Fields for which the trainer reports valid divisors if a rule has no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """Content of a file."""

    spec: TrainingJobSpec
    config: TrainerConfig
    hardware: PoolHardware | None
    """Hardware of the pool with the largest GPUs, among the pools in the file that the job may use.
    None if one of them does not describe its hardware."""

    step_time_percent: int = 100
    """Measured step time of that pool's jobs relative to the prediction."""
    step_parts: tuple[tuple[StepPart, float], ...] = ()
    """Measured parts of a step relative to the prediction, 1 as predicted. Empty if unknown."""

    @property
    def constants(self) -> Constants:
        """The planner's constants for this pool."""
        if self.step_parts:
            # Factors by part are more exact than one factor, so they win.
            return calibrated(CALIBRATED, dict(self.step_parts))
        if self.step_time_percent == 100:
            return CALIBRATED
        return rescaled(CALIBRATED, measured_over_predicted=self.step_time_percent / 100)

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.spec.nodes * self.spec.gpus_per_node


def read_job(name: str, *, like: ModelConfig | None = None) -> JobFile:
    """Return the one TrainingJob of a file, with the GpuPools beside it.

    Args:
        name: name of the file.
        like: what a model that a folder describes is taken for.

    Raises:
        BadInput: there is none, there are several, or a field cannot be used; names file and line.
    """
    documents = read_manifests([name])
    # One job per file: the plan has one answer.
    jobs = [document for document in documents if document.kind == "TrainingJob"]
    if len(jobs) != 1:
        raise BadInput(f"{name}: want one TrainingJob, got {len(jobs)}")
    # Errors of the planner name fields of the trainer section, so the job is blamed.
    try:
        spec = _parsed(TrainingJobSpec, jobs[0])
        config = _with_model(_config(spec), spec, like=like)
    except ApiError as error:
        raise jobs[0].blame(error.path, str(error)) from None
    except ConfigError as error:
        raise jobs[0].blame("spec.trainer", str(error)) from None
    # Checks of the API server come last, because their messages have fewer figures.
    for refusal in refusals(jobs[0].raw):
        raise jobs[0].blame(refusal.path, str(refusal))
    hardware = largest_hardware(spec, _pools(documents))
    measured = GpuPoolStatus() if hardware is None else _status(documents, hardware.pool)
    parts = measured.model_dump(by_alias=True, exclude_none=True)
    return JobFile(
        spec=spec,
        config=config,
        hardware=hardware,
        # A status can be edited, so its figures are bounded before they are used.
        step_time_percent=min(10_000, max(1, measured.step_time_percent or 100)),
        step_parts=tuple(
            (part, min(100.0, max(0.01, percent / 100)))
            for part, percent in known_parts(parts).items()
        ),
    )


def gang_asked(job: JobFile) -> Gang:
    """Return the job as the scheduler would see it, with what its layout wants of the topology."""
    # The scheduler needs a whole job. Only its spec has a meaning here.
    verdict = judge(job.spec, job.hardware)
    asking = Job(
        namespace="default",
        name="job",
        uid="",
        resource_version="",
        object_generation=1,
        created_at=0.0,
        spec=job.spec,
        status=TrainingJobStatus(),
        verdict=verdict,
    )
    return gang_of(asking, priority=0)


def _with_model(
    config: TrainerConfig | FolderConfig, spec: TrainingJobSpec, *, like: ModelConfig | None
) -> TrainerConfig:
    """Return the configuration with its model.

    The model is never read from the folder, because the folder is in a claim of the cluster.

    Raises:
        ConfigError: the model is missing or given twice, or it cannot be trained with this spec.
    """
    # A built-in model is complete. A folder needs --like.
    if isinstance(config, TrainerConfig):
        if like is not None:
            raise ConfigError("--like: the job names a built-in model; remove --like")
        return config
    if like is None:
        raise ConfigError(
            f"trainer.model is the model of {config.settings.model_from}, which is not read here;"
            " set --like to its config.json, or to a built-in model of the same size"
        )
    whole = config.with_model(like)
    if not is_auto(whole):
        validated_layout(whole, world_size=spec.nodes * spec.gpus_per_node)
    return whole


def _config(spec: TrainingJobSpec) -> TrainerConfig | FolderConfig:
    """Return the configuration of its ranks.

    Raises:
        ApiError: the job runs a template, or the API server would refuse the spec; of sizes that
            do not divide with figures.
        ConfigError: the operator would.
    """
    if spec.trainer is None and spec.template is not None:
        raise ApiError(
            path="spec.template",
            problem="only jobs with trainer are planned; name the model instead, such as"
            " drumline plan llama-8b, or give its --dimensions",
        )
    # The operator's message has figures, and the API's rule has the path. Use both.
    broken = next(iter(broken_rules(spec)), None)
    try:
        config = trainer_config(spec)
    except ConfigError as error:
        if broken is None or broken.path not in _OF_SIZES:
            raise broken or error from None
        figures = str(error).partition(": ")[2]
        raise ApiError(path=broken.path, problem=figures) from None
    if broken is not None:
        raise broken
    return config


def _parsed(model: type[Model], document: ManifestDocument) -> Model:
    """Return the spec of an object that a person wrote.

    Raises:
        ApiError: a field cannot be used, or there is no such field.
    """
    raw = _spec(document)
    # Unknown fields are errors here, because a person wrote the file.
    for problem in unknown_fields(model, raw, at="spec"):
        raise problem
    return parse(model, raw, at="spec")


def _pools(documents: Sequence[ManifestDocument]) -> dict[str, GpuPoolSpec]:
    pools: dict[str, GpuPoolSpec] = {}
    for document in documents:
        if document.kind == "GpuPool":
            try:
                pool = _parsed(GpuPoolSpec, document)
                # A wrong GPU name must be reported for the pool, not for the job.
                if pool.hardware is not None:
                    named_gpu(pool.hardware.gpu)
            except ApiError as error:
                raise document.blame(error.path, str(error)) from None
            except ConfigError as error:
                raise document.blame("spec.hardware.gpu", str(error)) from None
            pools[document.namespaced_name[1]] = pool
    return pools


def _status(documents: Sequence[ManifestDocument], pool: str) -> GpuPoolStatus:
    """Return the status of the pool, in a file that was read from a cluster."""
    for document in documents:
        if document.kind == "GpuPool" and document.namespaced_name[1] == pool:
            try:
                return parse(GpuPoolStatus, document.raw.get("status") or {}, at="status")
            except ApiError as error:
                raise document.blame(error.path, str(error)) from None
    return GpuPoolStatus()


def _spec(document: ManifestDocument) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", document.raw.get("spec") or {})
