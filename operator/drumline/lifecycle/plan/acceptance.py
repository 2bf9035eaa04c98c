"""Decide whether a job belongs to this operator, can be scheduled, and is queued."""

from __future__ import annotations

from drumline.lifecycle.manifests.template_errors import template_error
from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.sizes import chooses_layout, even_sizes
from drumline.lifecycle.model.verdict import MemoryShortage, Refusal, Schedulable, Verdict
from drumline.lifecycle.plan.auto_sizes import auto_sizes
from drumline.lifecycle.plan.memory_fit import memory_shortage
from drumline_api.conditions import ConditionType, Reason
from drumline_api.spec_rules import broken_rules
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract import plain
from drumline_contract.config import ConfigError, FolderConfig, TrainerConfig

MANAGER = "drumline.dev/operator"
MAX_ERROR_CHARS = 500
_JUDGED = (
    *("trainer", "template", "roles", "nodes"),
    *("gpus_per_node", "gpu_partition", "topology", "checkpoint", "min_nodes"),
    *("gpu_pool", "gpu_pools", "resources"),
)
"""Fields that a verdict depends on."""


def is_ours(job: Job) -> bool:
    """Return whether this operator reconciles the job (`managedBy` as in batch/v1 Job)."""
    return job.spec.managed_by in (None, MANAGER)


def judge(spec: TrainingJobSpec, hardware: PoolHardware | None = None) -> Schedulable | Refusal:
    """Return the verdict on a spec: whether it can be scheduled. Any spec gets one.

    The schema bounds the work. Rules of the API server are checked again, because their policy may
    have been deleted.

    Args:
        spec: spec of the job.
        hardware: the largest GPUs that it may get. None if not declared: its memory is not judged.
    """
    # Cheap checks first. The first one that fails gives the message.
    if broken := broken_rules(spec):
        return Refusal(reason=Reason.CONFIG_REFUSED, message=plain("; ".join(map(str, broken))))
    if spec.template is not None:
        error = template_error(spec.template, spec.roles or ())
        if error is not None:
            return Refusal(reason=Reason.CONFIG_REFUSED, message=plain(error))
    if spec.trainer is None:
        return Schedulable()
    # Only the bundled trainer has a configuration to validate and memory to predict.
    try:
        config = trainer_config(spec)
        shortage = _shortage(spec, config, hardware)
        sizes = _sizes(spec, config, hardware)
    except ConfigError as error:
        return Refusal(reason=Reason.CONFIG_REFUSED, message=plain(str(error)), hardware=hardware)
    except Exception as error:  # noqa: BLE001 - what a tenant wrote must not reach the other jobs
        return refusal_for(error)
    if shortage is not None and hardware is not None and hardware.refuses:
        return Refusal(reason=Reason.MEMORY_EXCEEDED, message=shortage.message, hardware=hardware)
    return Schedulable(shortage=shortage, hardware=hardware, sizes=sizes)


def _shortage(
    spec: TrainingJobSpec, config: TrainerConfig | FolderConfig, hardware: PoolHardware | None
) -> MemoryShortage | None:
    if hardware is None or isinstance(config, FolderConfig):
        return None
    return memory_shortage(spec, config, hardware)


def _sizes(
    spec: TrainingJobSpec, config: TrainerConfig | FolderConfig, hardware: PoolHardware | None
) -> tuple[int, ...]:
    """Return the sizes of an elastic gang whose ranks choose their layout, otherwise ().

    For a folder's model, only sizes are certain at which ranks that do not share a sample divide
    the batch. That depends neither on heads nor on layers of the model.
    """
    if not chooses_layout(spec) or spec.min_nodes is None:
        return ()
    if isinstance(config, FolderConfig):
        return even_sizes(spec)
    return auto_sizes(spec, config, hardware)


def has_same_verdict(before: TrainingJobSpec, after: TrainingJobSpec) -> bool:
    """Return whether two specs are equal in everything that a verdict depends on."""
    return all(getattr(before, name) == getattr(after, name) for name in _JUDGED)


def refusal_for(error: Exception) -> Refusal:
    """Return the verdict on a job that raised this error. The other jobs are not affected."""
    # A ValueError comes from values that do not fit together. Any other error is a bug of ours.
    if isinstance(error, ValueError):  # the values do not fit together, and it says which
        return Refusal(reason=Reason.CONFIG_REFUSED, message=plain(str(error)))
    text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    return Refusal(
        reason=Reason.OPERATOR_ERROR,
        message="the operator failed to read this job, which is a bug in the operator:"
        f" {plain(text)}",
    )


def verdict_of(job: Job) -> Verdict:
    """Return the verdict that is kept with the job, or a new one."""
    return judge(job.spec) if job.verdict is None else job.verdict


def refusal_of(job: Job) -> Refusal | None:
    """Return why the job cannot be scheduled. None: it can, or no verdict is known yet."""
    verdict = verdict_of(job)
    return verdict if isinstance(verdict, Refusal) else None


def is_queued(job: Job) -> bool:
    """Return whether the scheduler must place the job. O(1) with a stored verdict."""
    return waits(job) and isinstance(verdict_of(job), Schedulable)


def waits(job: Job) -> bool:
    """Return whether the job waits for nodes, whatever the verdict on its spec is."""
    return (
        job.status.assignment is None
        and job.status.finished_at is None
        and not job.deleting
        and not job.spec.suspend
        and is_ours(job)
        and not is_true(job.status, ConditionType.SUSPENDED)
    )
