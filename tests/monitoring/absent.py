"""Panels and metrics that stay empty on fake nodes without GPUs, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_GPUS: Final = "there are no GPUs, so no dcgm-exporter"
_NO_PEAK: Final = "the peak of a processor is not known"
_NO_PREDICTION: Final = "the planner does not know processors"

PANELS: Final[Mapping[str, str]] = {
    "fleet: Preemptions and moves 1": "nothing moves unless scheduling.moves says so",
    "job: Model FLOP utilization 0": _NO_PEAK,
    "job: Seconds of a step 1": _NO_PREDICTION,
    "nodes: Gangs that are not whole, and jobs without series 0": "there must never be one",
    "nodes: Hottest GPUs 0": _NO_GPUS,
    "nodes: Last Xid 0": _NO_GPUS,
    "nodes: Measured over predicted step time 0": _NO_PREDICTION,
    "nodes: Measured over predicted step time 1": _NO_PREDICTION,
    "nodes: Power 0": _NO_GPUS,
    "nodes: Restarts of jobs and changes of size 1": "no job of the play is elastic",
    "nodes: Rows that could not be remapped 0": _NO_GPUS,
    "nodes: Tensor cores 0": _NO_GPUS,
    "nodes: Utilization 0": _NO_GPUS,
    "operator: Exceptions of the scheduler 0": "there must never be one",
    "operator: Objects left out, and gangs without their key 0": "the API server takes none",
    "operator: Objects left out, and gangs without their key 2": "all namespaces are watched",
    "operator: Reconciles that fail 0": "none fails in the play",
    "queues: Model FLOP utilization 0": _NO_PEAK,
}
"""By place, as in `evidence.Question`."""
METRICS: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_XID_ERRORS": _NO_GPUS,
    "drumline_gang_missing_members": "there must never be one",
    "drumline_poisoned_objects_total": "the API server takes none",
    "drumline_reconcile_errors_total": "none fails in the play",
    "drumline_scheduling_faults_total": "there must never be one",
    "drumline_trainer_predicted_step_seconds": _NO_PREDICTION,
}
"""Metrics that alerts ask for."""
