"""The pod's Prometheus metrics, in the text format, version 0.0.4.

Labels for namespace, pod and job come from the scrape configuration, not from here.
"""

from __future__ import annotations

from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract.step_figures.bottleneck import diagnose
from drumline_contract.step_figures.step_record import MFU_FORMULA

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("fault", "detected", "decided", "replaced", "joined", "restored", "first_step")
"""Stages of a recovery, in their order (`contract.Incident`)."""
MFU_HELP = f"Model FLOP utilization: {MFU_FORMULA}."


def render(status: RankStatusStore) -> bytes:
    """Return all metrics of one pod as text; a gauge whose value is not known yet is left out."""
    lines = [
        *_gauge("generation", "Generation of the ranks' membership.", status.generation),
        *_gauge("attempt", "Restart in place within the generation.", status.attempt),
        *([] if status.heartbeat is None else _training(status.heartbeat)),
        *_restarts(status),
        *_recovery(status),
        *_idle(status),
        "# HELP drumline_trainer_rank_up Whether the rank's process runs.",
        "# TYPE drumline_trainer_rank_up gauge",
        *(
            f'drumline_trainer_rank_up{{rank="{rank}"}} {int(up)}'
            for rank, up in sorted(status.ranks_up.items())
        ),
    ]
    return ("\n".join(lines) + "\n").encode()


def _training(newest: Heartbeat) -> list[str]:
    return [
        *_gauge("step", "Finished optimizer steps.", newest.step),
        *_gauge("total_steps", "Optimizer steps of the whole run.", newest.total_steps),
        *_gauge("loss", "Training loss, mean over the global batch.", newest.loss),
        *_gauge("gradient_norm", "Of all ranks together, before clipping.", newest.gradient_norm),
        *_gauge("tokens_per_second", "Over all ranks of the job.", newest.tokens_per_second),
        *_gauge("step_seconds", "Mean step time, checkpoints excluded.", newest.step_seconds),
        *_gauge(
            "predicted_step_seconds",
            "Step time that the planner predicts for this layout and device.",
            newest.predicted_step_seconds,
        ),
        *_gauge("mfu_ratio", MFU_HELP, newest.mfu),
        *_gauge("checkpoint_step", "Newest committed checkpoint.", newest.checkpoint_step),
        *_gauge(
            "checkpoint_seconds",
            "How long training stood still for the newest checkpoint.",
            newest.checkpoint_seconds,
        ),
        *_gauge(
            "snapshot_every_steps",
            "Steps between snapshots in memory, by their measured cost.",
            newest.snapshot_every_steps,
        ),
        *_gauge(
            "snapshot_seconds",
            "How long training stood still for the newest snapshot.",
            newest.snapshot_seconds,
        ),
        *_parts(newest),
        *_memory(newest),
        *_verdict(newest),
    ]


def _parts(newest: Heartbeat) -> list[str]:
    """Return the metrics of step parts. The axis is empty for all parts but collectives."""
    if not newest.step_parts:
        return []
    split = [(*name.partition("/")[::2], value) for name, value in newest.step_parts.items()]
    return [
        "# HELP drumline_trainer_step_part_seconds Mean seconds of a step by what it is spent on.",
        "# TYPE drumline_trainer_step_part_seconds gauge",
        *(
            f'drumline_trainer_step_part_seconds{{part="{part}",axis="{axis}"}} {value!r}'
            for part, axis, value in sorted(split)
        ),
    ]


def _memory(newest: Heartbeat) -> list[str]:
    if not newest.memory_bytes:
        return []
    return [
        "# HELP drumline_trainer_memory_bytes Memory of the rank by what it is used for.",
        "# TYPE drumline_trainer_memory_bytes gauge",
        *(
            f'drumline_trainer_memory_bytes{{category="{name}"}} {value}'
            for name, value in sorted(newest.memory_bytes.items())
        ),
    ]


def _verdict(newest: Heartbeat) -> list[str]:
    """Return what limits the rank. The full sentence is in the job's log and in `steps.jsonl`."""
    if not newest.step_parts or not any(newest.step_parts.values()):
        return []
    memory = newest.memory_bytes or {}
    full = memory["peak"] / memory["capacity"] if memory.get("capacity") else None
    verdict = diagnose(newest.step_parts, mfu=newest.mfu, memory_share=full)
    return [
        "# HELP drumline_trainer_bound_share By what the rank is limited, and the share of a step.",
        "# TYPE drumline_trainer_bound_share gauge",
        f'drumline_trainer_bound_share{{bound="{verdict.bound}"}} {verdict.share!r}',
    ]


def _restarts(status: RankStatusStore) -> list[str]:
    """Return the counters of restarts; only the leader counts them, other pods export no lines."""
    if not status.restarts:
        return []
    return [
        "# HELP drumline_trainer_restarts_total Attempts begun in place, by the fault before.",
        "# TYPE drumline_trainer_restarts_total counter",
        *(
            f'drumline_trainer_restarts_total{{class="{fault_class}"}} {count}'
            for fault_class, count in sorted(status.restarts.items())
        ),
    ]


def _idle(status: RankStatusStore) -> list[str]:
    """Return the gauge of the gang's pause; only the leader knows it, other pods export no line."""
    if status.pause is None:
        return []
    seconds = status.pause.seconds if status.pause.is_idle else 0.0
    text = "Since the gang's last sign of work; 0 until that is longer than usual."
    return _gauge("idle_seconds", text, round(seconds, 1))


def _recovery(status: RankStatusStore) -> list[str]:
    """Return the seconds of each stage of the newest complete recovery."""
    complete = [incident for incident in status.incidents if incident.first_step_at is not None]
    if not complete:
        return []
    times = [getattr(complete[-1], f"{name}_at") for name in STAGES]
    seconds = [
        (name, later - earlier)
        for name, earlier, later in zip(STAGES[1:], times, times[1:], strict=False)
        if earlier is not None and later is not None
    ]
    return [
        "# HELP drumline_trainer_recovery_seconds Newest recovery: seconds up to each stage.",
        "# TYPE drumline_trainer_recovery_seconds gauge",
        *(
            f'drumline_trainer_recovery_seconds{{stage="{name}"}} {value!r}'
            for name, value in seconds
        ),
    ]


def _gauge(name: str, text: str, value: float | None) -> list[str]:
    if value is None:
        return []
    full = f"drumline_trainer_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value!r}"]
