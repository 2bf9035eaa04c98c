"""Check the fields of a TrainingJob's spec against each other, in CEL and in Python.

The API server evaluates the CEL when a job is created and when its spec changes. The chart has it
in a ValidatingAdmissionPolicy (`spec_policy`), `crds/` in the CRD. A policy or its binding can be
deleted, and an object can be older than a rule. The operator therefore evaluates the Python before
a job gets a GPU (`lifecycle.plan.acceptance`). `tests/integration/api` compares the two on
generated specs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from drumline_api.base import Rule, name_rule
from drumline_api.load import ApiError
from drumline_api.resource_names import (
    GPU,
    KNOWN,
    LEAST_MEMORY,
    has_too_little_memory,
    is_gpu,
    is_known,
    is_more_than_nothing,
    lacks_memory,
)
from drumline_api.role_rules import ROLE_RULES

# The model has these rules as its own: for its type alone it is named here.
if TYPE_CHECKING:
    from drumline_api.trainingjob import TrainingJobSpec

MAX_GPUS: Final = 100_000
# Texts of CEL. Parentheses keep them valid inside larger expressions.
_RANKS: Final = "(self.nodes * self.gpusPerNode)"
_BATCH: Final = "self.trainer.globalBatchSize"
_DEGREES: Final = "self.trainer.parallelism"
_HAS_DEGREES: Final = "(has(self.trainer) && has(self.trainer.parallelism))"
_TOGETHER: Final = f"({_DEGREES}.tensor * {_DEGREES}.context * {_DEGREES}.pipeline)"
"""Number of ranks that process the same samples."""
_LAUNCHED: Final = (
    "(has(self.template) && has(self.template.launch) && self.template.launch != 'Direct')"
)
_UNEVEN: Final = (
    "trainer.globalBatchSize: %d does not split evenly over %d ranks (nodes x gpusPerNode); use a"
    " multiple, for instance %d"
)


def broken_rules(spec: TrainingJobSpec) -> tuple[ApiError, ...]:
    """Return the messages with which a server that has the rules would reject a spec.

    Takes microseconds.
    """
    complaints = (rule.complaint(spec, at="spec") for rule in RULES_OF_THE_SPEC)
    return tuple(
        ApiError(path=complaint[0], problem=complaint[1])
        for complaint in complaints
        if complaint is not None
    )


def broken_name(name: str) -> ApiError | None:
    """Return why a TrainingJob cannot have this name, or None if it can."""
    complaint = JOB_NAME.complaint(name, at="")
    # The message starts with the path, which the caller has already.
    if complaint is None:
        return None
    path, _, problem = complaint[1].partition(": ")
    return ApiError(path=path, problem=problem)


def _rule(
    rule: str,
    *,
    holds: Callable[[TrainingJobSpec], bool],
    message: str,
    field_path: str | None = None,
    message_expression: str | None = None,
    explain: Callable[[TrainingJobSpec], str] | None = None,
) -> Rule:
    """Return a rule over the whole spec. Its Python is not optional."""
    return Rule(
        rule=rule,
        holds=holds,
        message=message,
        field_path=field_path,
        message_expression=message_expression,
        explain=explain,
    )


def _ranks(spec: TrainingJobSpec) -> int:
    return spec.nodes * spec.gpus_per_node


def _pools_are_distinct(spec: TrainingJobSpec) -> bool:
    return spec.gpu_pools is None or len(set(spec.gpu_pools)) == len(spec.gpu_pools)


def _may_span_pools(spec: TrainingJobSpec) -> bool:
    together = spec.topology is not None and spec.topology.required is not None
    return spec.spot != "Surplus" or not (spec.gpu_pool or together)


def _slices_divide_the_gang(spec: TrainingJobSpec) -> bool:
    slices = spec.topology.slices if spec.topology is not None else None
    # `all` of nothing is true: a job without slices passes.
    return all(spec.nodes % part.nodes == 0 for part in slices or ())


def _is_launched(spec: TrainingJobSpec) -> bool:
    return spec.template is not None and spec.template.launch not in {None, "Direct"}


def _can_continue_resized(spec: TrainingJobSpec) -> bool:
    return _is_launched(spec) or (spec.trainer is not None and spec.checkpoint is not None)


def _batch_splits_over_the_ranks(spec: TrainingJobSpec) -> bool:
    # With explicit parallelism, another rule compares with the copies instead of the ranks.
    trainer = spec.trainer
    if trainer is None or trainer.parallelism is not None:
        return True
    return trainer.global_batch_size % _ranks(spec) == 0


def _uneven(spec: TrainingJobSpec) -> str:
    batch, ranks = spec.trainer.global_batch_size if spec.trainer else 0, _ranks(spec)
    # The next larger multiple, so that the message contains a valid value.
    return _UNEVEN % (batch, ranks, (batch // ranks + 1) * ranks)


def _ranks_divide_by_the_degrees(spec: TrainingJobSpec) -> bool:
    degrees = spec.trainer.parallelism if spec.trainer is not None else None
    if degrees is None:
        return True
    together = degrees.tensor * degrees.context * degrees.pipeline
    return _ranks(spec) % (together * degrees.replicate) == 0


def _batch_splits_over_the_copies(spec: TrainingJobSpec) -> bool:
    trainer = spec.trainer
    if trainer is None or trainer.parallelism is None or trainer.parallelism.mode == "Auto":
        return True
    degrees = trainer.parallelism
    # An indivisible number of ranks has its own message, so this rule does not add a second one.
    copies, rest = divmod(_ranks(spec), degrees.tensor * degrees.context * degrees.pipeline)
    return rest != 0 or trainer.global_batch_size % copies == 0


# 50 characters leave room for index and generation in a label of 63 characters.
JOB_NAME: Final = name_rule(
    kind="TrainingJob",
    longest=50,
    why="its pods are named name-index-generation and carry it as a label",
)

RULES_OF_THE_SPEC: Final = (
    _rule(
        "has(self.trainer) != has(self.template)",
        holds=lambda spec: (spec.trainer is None) != (spec.template is None),
        message="exactly one of trainer and template is required: `trainer: {}` trains the"
        " built-in model, template runs your own image",
    ),
    _rule(
        "!has(self.template) || !has(self.checkpoint)",
        holds=lambda spec: spec.template is None or spec.checkpoint is None,
        message="checkpoint needs the bundled trainer; with template, mount a claim with"
        " template.volumes and remove checkpoint",
        field_path=".checkpoint",
    ),
    # Both factors are bounded, so the product fits into CEL's 64-bit integers.
    _rule(
        f"{_RANKS} <= {MAX_GPUS}",
        holds=lambda spec: _ranks(spec) <= MAX_GPUS,
        message=f"nodes x gpusPerNode exceeds {MAX_GPUS} GPUs; lower one of them",
        field_path=".nodes",
    ),
    _rule(
        "!has(self.gpuPool) || !has(self.gpuPools)",
        holds=lambda spec: spec.gpu_pool is None or spec.gpu_pools is None,
        message="gpuPool and gpuPools exclude each other; keep gpuPools, with the preferred pool"
        " first",
        field_path=".gpuPools",
    ),
    _rule(
        "!has(self.gpuPartition) || has(self.gpuPool)",
        holds=lambda spec: spec.gpu_partition is None or spec.gpu_pool is not None,
        message="gpuPartition is defined per pool; set gpuPool to the pool that offers it",
        field_path=".gpuPartition",
    ),
    _rule(
        "!has(self.gpuPartition) || self.gpusPerNode == 1",
        holds=lambda spec: spec.gpu_partition is None or spec.gpus_per_node == 1,
        message="gpuPartition: a program can use one part of a GPU; set gpusPerNode to 1",
        field_path=".gpusPerNode",
    ),
    _rule(
        "!has(self.computeDomain) || self.nodes > 1",
        holds=lambda spec: spec.compute_domain is None or spec.nodes > 1,
        message="computeDomain connects the GPUs of several nodes; remove it, or raise nodes",
        field_path=".computeDomain",
    ),
    _rule(
        "!has(self.computeDomain) || !has(self.gpuPartition)",
        holds=lambda spec: spec.compute_domain is None or spec.gpu_partition is None,
        message="computeDomain connects whole GPUs; remove it, or gpuPartition",
        field_path=".computeDomain",
    ),
    # `exists_one` compares each pair. 16 pools make 256 comparisons.
    _rule(
        "!has(self.gpuPools) || self.gpuPools.all(one,"
        " self.gpuPools.exists_one(other, other == one))",
        holds=_pools_are_distinct,
        message="gpuPools: a pool is listed twice; keep the first entry",
        field_path=".gpuPools",
    ),
    _rule(
        "!has(self.spot) || self.spot != 'Surplus' || has(self.minNodes)",
        holds=lambda spec: spec.spot != "Surplus" or spec.min_nodes is not None,
        message="spot: Surplus applies to the pods above the minimum size of an elastic job; add"
        " minNodes",
        field_path=".spot",
    ),
    _rule(
        "!has(self.spot) || self.spot != 'Surplus' || (!has(self.gpuPool)"
        " && (!has(self.topology) || !has(self.topology.required)))",
        holds=_may_span_pools,
        message="spot: Surplus needs a second pool; list both pools in gpuPools instead of"
        " gpuPool, and use topology.preferred instead of topology.required",
        field_path=".spot",
    ),
    # A slice that is not full could not be placed as a whole domain.
    _rule(
        "!has(self.topology) || !has(self.topology.slices)"
        " || self.topology.slices.all(one, self.nodes % one.nodes == 0)",
        holds=_slices_divide_the_gang,
        message="topology.slices: nodes of the job must be a multiple of nodes of each slice;"
        " change one of them",
        field_path=".topology.slices",
    ),
    _rule(
        "!has(self.minNodes) || self.minNodes <= self.nodes",
        holds=lambda spec: spec.min_nodes is None or spec.min_nodes <= spec.nodes,
        message="minNodes must be at most nodes; lower it",
        field_path=".minNodes",
    ),
    _rule(
        # Another size means another sharding, which only a checkpoint or a program can restore.
        f"!has(self.minNodes) || (has(self.trainer) && has(self.checkpoint)) || {_LAUNCHED}",
        holds=lambda spec: spec.min_nodes is None or _can_continue_resized(spec),
        message="minNodes needs trainer and checkpoint, or a template with launch PerGpu or"
        " PerPod, because a gang of another size continues from a checkpoint; add"
        " checkpoint.claimName or template.launch, or remove minNodes",
        field_path=".minNodes",
    ),
    _rule(
        f"!has(self.recovery) || !has(self.recovery.holdSeconds) || {_LAUNCHED}",
        holds=lambda spec: spec.recovery.hold_seconds is None or _is_launched(spec),
        message="recovery.holdSeconds needs a template with launch PerGpu or PerPod, because an"
        " agent keeps the pods; add template.launch, or remove holdSeconds",
        field_path=".recovery.holdSeconds",
    ),
    # The first disjunct stops the evaluation for templates, so absent fields are not read.
    _rule(
        f"!has(self.trainer) || {_HAS_DEGREES} || {_BATCH} % {_RANKS} == 0",
        holds=_batch_splits_over_the_ranks,
        message="trainer.globalBatchSize must be a multiple of nodes x gpusPerNode",
        message_expression=f"'{_UNEVEN}'.format("
        f"[{_BATCH}, {_RANKS}, ({_BATCH} / {_RANKS} + 1) * {_RANKS}])",
        explain=_uneven,
        field_path=".trainer.globalBatchSize",
    ),
    _rule(
        f"!{_HAS_DEGREES} || {_RANKS} % ({_TOGETHER} * {_DEGREES}.replicate) == 0",
        holds=_ranks_divide_by_the_degrees,
        message="nodes x gpusPerNode must be a multiple of tensor x context x pipeline x"
        " replicate of trainer.parallelism; change one of them",
        field_path=".trainer.parallelism",
    ),
    # Auto is checked by the operator, because the planner chooses its degrees.
    _rule(
        f"!{_HAS_DEGREES} || {_DEGREES}.mode == 'Auto' || {_RANKS} % {_TOGETHER} != 0"
        f" || {_BATCH} % ({_RANKS} / {_TOGETHER}) == 0",
        holds=_batch_splits_over_the_copies,
        message="trainer.globalBatchSize must be a multiple of the data-parallel ranks: nodes x"
        " gpusPerNode / (tensor x context x pipeline)",
        field_path=".trainer.globalBatchSize",
    ),
    # The name of the resource, not its amount: 0 GPUs in resources is a mistake too.
    _rule(
        f"!has(self.resources) || !self.resources.exists(key, {GPU})",
        holds=lambda spec: not any(map(is_gpu, spec.resources or ())),
        message="resources: GPUs are requested with gpusPerNode; remove them from resources",
        field_path=".resources",
    ),
    _rule(
        f"!has(self.resources) || self.resources.all(key, {KNOWN})",
        holds=lambda spec: all(map(is_known, spec.resources or ())),
        message="resources: names must be cpu, memory, ephemeral-storage, hugepages-<size> or"
        " devices named domain/name; fix the name",
        field_path=".resources",
    ),
    # Amounts may be integers, so they are converted to text before parsing.
    _rule(
        "!has(self.resources) || self.resources.all(key,"
        " quantity(string(self.resources[key])).isGreaterThan(quantity('0')))",
        holds=lambda spec: all(map(is_more_than_nothing, (spec.resources or {}).values())),
        message="resources: every amount must be greater than 0; remove the entry or raise it",
        field_path=".resources",
    ),
    _rule(
        f"!has(self.resources) || !({has_too_little_memory('self.resources')})",
        holds=lambda spec: not lacks_memory(spec.resources or {}),
        message=f"resources: memory must be at least {LEAST_MEMORY}; add its unit, such as 64Gi",
        field_path=".resources",
    ),
    # Rules of roles live in their own module, and are part of the same policy.
    *ROLE_RULES,
)
"""Rules that a created object must satisfy. `mutability` has the rules about changes."""
