"""A plan, and a score, as JSON values: units in the names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from drumline_cli.plan.model import Plan
from drumline_cli.plan.rehearse import Rehearsal
from drumline_planner.constants import CALIBRATED
from drumline_planner.run_size import PickedSize
from drumline_planner.score import ErrorSummary, Scored
from drumline_planner.search import Planned, RejectedLayout
from drumline_scheduler.model import Gang


# Field names contain the unit, so that programs need no documentation for it.
def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the whole answer."""
    result, goal = plan.result, plan.request.goal
    return {
        "title": plan.request.title,
        "gpu": goal.cluster.gpu.name,
        "gpus": goal.cluster.gpus,
        "capacity_bytes": goal.capacity,
        "layouts": [layout_json(each) for each in result.planned],
        "as_written": None
        if plan.written is None
        else {
            "layout": plan.written.layout,
            "memory_bytes": round(plan.written.bill.total),
            "fits": plan.written.bill.fits,
            "step_seconds": plan.written.seconds,
            "smallest_change": plan.written.change,
        },
        "scheduler": None if plan.gang is None else _scheduler_request(plan.gang),
        # A refused layout keeps its position, so results match the arguments.
        "compared": [
            layout_json(each) | {"fits": each.bill.total <= goal.capacity}
            if isinstance(each, Planned)
            else {"refused": each.reason}
            for each in plan.compared
        ],
        "curve": [
            {"gpus": gpus, "layout": None if each is None else layout_json(each)}
            for gpus, each in plan.curve
        ],
        "rehearsal": None if plan.rehearsal is None else _rehearsal_json(plan.rehearsal),
        "size": None
        if plan.size is None
        else {
            "gpus": plan.size.sized.gpus if isinstance(plan.size, PickedSize) else None,
            "reason": plan.size.reason,
        },
        "advice": asdict(plan.advice),
        "refusals": result.refusals,
        "rejected": [_rejected(each) for each in result.rejected],
        "space": result.space,
        "examined": result.examined,
        # The constants make a saved plan reproducible.
        "constants": asdict(goal.constants),
    }


def _scheduler_request(gang: Gang) -> dict[str, Any]:
    """Return the sizes that the gang may have, and what it asks of the topology."""
    return {
        "sizes": list(gang.legal_sizes),
        "slices": [
            {"level": each.level, "nodes": each.pods, "required": each.required}
            for each in gang.slices
        ],
    }


def _rehearsal_json(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        "gpu": rehearsal.gpu,
        "ranks": rehearsal.rehearsed.ranks,
        "smaller": list(rehearsal.rehearsed.smaller),
        "parts": [
            {
                "part": each.part,
                "predicted_bytes": round(each.predicted),
                "measured_bytes": round(each.measured),
            }
            for each in rehearsal.parts
        ],
        "correction": asdict(rehearsal.correction),
        "step_seconds": rehearsal.step_seconds,
    }


def layout_json(planned: Planned) -> dict[str, Any]:
    """Return a layout with its TrainingJob fields and its predicted cost."""
    config, time = planned.config, planned.time
    return {
        "layout": str(planned.layout),
        "trainer": {
            "globalBatchSize": config.global_batch_size,
            "microBatchSize": config.micro_batch_size,
            "parallelism": asdict(config.parallelism),
            "memory": asdict(config.memory),
        },
        "step_seconds": time.seconds,
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "bottleneck": str(time.bottleneck),
        "parts_seconds": {str(part): seconds for part, seconds in time.parts.items()},
        "memory_bytes": round(planned.bill.total),
        "bill": [
            {"name": line.name, "bytes": round(line.size), "note": line.note}
            for line in planned.bill.lines
        ],
    }


def score_json(scored: Sequence[Scored], errors: ErrorSummary) -> dict[str, Any]:
    """Return all rows and a summary of the errors."""
    return {
        "rows": [
            {
                "line": each.measured.line,
                "layout": str(each.measured.setup.layout),
                "micro_batch": each.measured.setup.micro_batch,
                "measured_ms": None
                if each.measured.seconds is None
                else 1000 * each.measured.seconds,
                "predicted_ms": 1000 * each.predicted.seconds,
                "error": each.error,
                "predicted_memory_bytes": round(each.bill.total),
                "measured_memory_bytes": each.measured.memory_bytes,
                "fits": each.bill.fits,
                "ran": each.measured.ran,
            }
            for each in scored
        ],
        "summary": asdict(errors),
        "constants": asdict(CALIBRATED),
    }


def _rejected(rejected: RejectedLayout) -> dict[str, Any]:
    return {"choice": asdict(rejected.choice), "reason": rejected.reason}
