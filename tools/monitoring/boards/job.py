"""One job: how it learns, how fast, what it waits for, what went wrong."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import Board, Panel, Query, Unit, Variable, panel, row

_JOB: Final = '{namespace="$namespace",training_job="$training_job"}'


def _of(metric: str, by: str = "", function: str = "max") -> str:
    clause = f" by ({by})" if by else ""
    return f"{function}{clause} (drumline_trainer_{metric}{_JOB})"


def _figure(title: str, metric: str, description: str, unit: Unit = "short") -> Panel:
    return panel(title, description, Query(_of(metric), title.lower()), unit=unit)


JOB: Final = Board(
    name="job",
    title="Job",
    description="One training job: loss, speed, where a step's time goes, faults and recoveries.",
    variables=(
        Variable(
            name="namespace", metric="drumline_trainer_generation", label="namespace", several=False
        ),
        Variable(
            name="training_job",
            metric='drumline_trainer_generation{namespace="$namespace"}',
            label="training_job",
            several=False,
        ),
    ),
    rows=(
        row(
            "Progress",
            panel(
                "Steps",
                "Finished, and all of them.",
                Query(_of("step"), "finished"),
                Query(_of("total_steps"), "all"),
                Query(_of("checkpoint_step"), "in a checkpoint"),
            ),
            _figure("Loss", "loss", "Mean over the global batch."),
            _figure("Gradient norm", "gradient_norm", "Over all ranks, before clipping."),
        ),
        row(
            "Speed",
            _figure("Tokens per second", "tokens_per_second", "Over all ranks."),
            panel(
                "Seconds of a step",
                "Beside what the planner predicts for this layout and device.",
                Query(_of("step_seconds"), "measured"),
                Query(_of("predicted_step_seconds"), "predicted"),
                unit="s",
            ),
            _figure(
                "Model FLOP utilization",
                "mfu_ratio",
                "Absent where the peak of the device is not known.",
                "percentunit",
            ),
        ),
        row(
            "Where a step's time goes",
            panel(
                "Parts of a step",
                (
                    "Mean over the pods: computing, collectives by axis, waiting for"
                    " data, saving, the rest."
                ),
                Query(_of("step_part_seconds", "part, axis", "avg"), "{{part}} {{axis}}"),
                unit="s",
                stacked=True,
            ),
            panel(
                "Seconds of computing by pod",
                "A pod that stands out is a slow node: compare with its others.",
                Query(
                    (
                        "sum by (pod) (drumline_trainer_step_part_seconds"
                        '{namespace="$namespace",training_job="$training_job",'
                        'part=~"forward|backward|optimizer"})'
                    ),
                    "{{pod}}",
                ),
                unit="s",
            ),
            panel(
                "What limits the ranks",
                "By bound, the largest share of a step over the pods.",
                Query(_of("bound_share", "bound"), "{{bound}}"),
                unit="percentunit",
                at_most=1,
            ),
        ),
        row(
            "Memory and checkpoints",
            panel(
                "Memory by category",
                "Of the fullest pod's first rank.",
                Query(_of("memory_bytes", "category"), "{{category}}"),
                unit="bytes",
            ),
            panel(
                "Training stands still for",
                "The newest checkpoint and the newest snapshot in memory.",
                Query(_of("checkpoint_seconds"), "checkpoint"),
                Query(_of("snapshot_seconds"), "snapshot"),
                unit="s",
            ),
            _figure(
                "Steps between snapshots",
                "snapshot_every_steps",
                "Chosen by their measured cost: what a fault undoes at most.",
            ),
        ),
        row(
            "Faults",
            panel(
                "Ranks that run",
                "Of each pod.",
                Query(_of("rank_up", "pod, rank", "min"), "{{rank}}"),
                kind="state-timeline",
                unit="none",
            ),
            panel(
                "Generations and attempts",
                "A generation is a new membership, an attempt a restart in place.",
                Query(_of("generation"), "generation"),
                Query(_of("attempt"), "attempt"),
                Query(_of("restarts_total", "class"), "{{class}}"),
            ),
            _figure(
                "Idle for",
                "idle_seconds",
                "Since its last sign of work; 0 until that is longer than usual.",
                "s",
            ),
            panel(
                "The newest recovery",
                "Seconds up to each stage since the stage before.",
                Query(_of("recovery_seconds", "stage"), "{{stage}}"),
                kind="bargauge",
                unit="s",
            ),
        ),
    ),
)
