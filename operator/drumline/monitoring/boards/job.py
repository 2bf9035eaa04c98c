"""One job: how it learns, how fast, what it waits for, what went wrong."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.panels import Board, Panel, PanelRow, Query, Unit, Variable

_JOB: Final = '{namespace="$namespace",training_job="$training_job"}'


def _of(metric: str, by: str = "", function: str = "max") -> str:
    clause = f" by ({by})" if by else ""
    return f"{function}{clause} (drumline_trainer_{metric}{_JOB})"


def _figure(title: str, metric: str, description: str, unit: Unit = "short") -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expression=_of(metric), legend=title.lower()),),
    )


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
        PanelRow(
            title="Progress",
            panels=(
                Panel(
                    title="Steps",
                    description="Finished, and all of them.",
                    queries=(
                        Query(expression=_of("step"), legend="finished"),
                        Query(expression=_of("total_steps"), legend="all"),
                        Query(expression=_of("checkpoint_step"), legend="in a checkpoint"),
                    ),
                ),
                _figure("Loss", "loss", "Mean over the global batch."),
                _figure("Gradient norm", "gradient_norm", "Over all ranks, before clipping."),
            ),
        ),
        PanelRow(
            title="Speed",
            panels=(
                _figure("Tokens per second", "tokens_per_second", "Over all ranks."),
                Panel(
                    title="Seconds of a step",
                    description="Beside what the planner predicts for this layout and device.",
                    unit="s",
                    queries=(
                        Query(expression=_of("step_seconds"), legend="measured"),
                        Query(expression=_of("predicted_step_seconds"), legend="predicted"),
                    ),
                ),
                _figure(
                    "Model FLOP utilization",
                    "mfu_ratio",
                    "Absent where the peak of the device is not known.",
                    "percentunit",
                ),
            ),
        ),
        PanelRow(
            title="Where a step's time goes",
            panels=(
                Panel(
                    title="Parts of a step",
                    description="Mean over the pods: computing, collectives by axis, waiting for"
                    " data, saving, the rest.",
                    unit="s",
                    stacked=True,
                    queries=(
                        Query(
                            expression=_of("step_part_seconds", "part, axis", "avg"),
                            legend="{{part}} {{axis}}",
                        ),
                    ),
                ),
                Panel(
                    title="Seconds of computing by pod",
                    description="A pod that stands out is a slow node: compare with its others.",
                    unit="s",
                    queries=(
                        Query(
                            expression="sum by (pod) (drumline_trainer_step_part_seconds"
                            '{namespace="$namespace",training_job="$training_job",'
                            'part=~"forward|backward|optimizer"})',
                            legend="{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="What limits the ranks",
                    description="By bound, the largest share of a step over the pods.",
                    unit="percentunit",
                    at_most=1,
                    queries=(Query(expression=_of("bound_share", "bound"), legend="{{bound}}"),),
                ),
            ),
        ),
        PanelRow(
            title="Memory and checkpoints",
            panels=(
                Panel(
                    title="Memory by category",
                    description="Of the fullest pod's first rank.",
                    unit="bytes",
                    queries=(
                        Query(expression=_of("memory_bytes", "category"), legend="{{category}}"),
                    ),
                ),
                Panel(
                    title="Training stands still for",
                    description="The newest checkpoint and the newest snapshot in memory.",
                    unit="s",
                    queries=(
                        Query(expression=_of("checkpoint_seconds"), legend="checkpoint"),
                        Query(expression=_of("snapshot_seconds"), legend="snapshot"),
                    ),
                ),
                _figure(
                    "Steps between snapshots",
                    "snapshot_every_steps",
                    "Chosen by their measured cost: what a fault undoes at most.",
                ),
            ),
        ),
        PanelRow(
            title="Faults",
            panels=(
                Panel(
                    title="Ranks that run",
                    description="Of each pod.",
                    kind="state-timeline",
                    unit="none",
                    queries=(
                        Query(expression=_of("rank_up", "pod, rank", "min"), legend="{{rank}}"),
                    ),
                ),
                Panel(
                    title="Generations and attempts",
                    description="A generation is a new membership, an attempt a restart in place.",
                    queries=(
                        Query(expression=_of("generation"), legend="generation"),
                        Query(expression=_of("attempt"), legend="attempt"),
                        Query(expression=_of("restarts_total", "class"), legend="{{class}}"),
                    ),
                ),
                _figure(
                    "Idle for",
                    "idle_seconds",
                    "Since its last sign of work; 0 until that is longer than usual.",
                    "s",
                ),
                Panel(
                    title="The newest recovery",
                    description="Seconds up to each stage since the stage before.",
                    kind="bargauge",
                    unit="s",
                    queries=(
                        Query(expression=_of("recovery_seconds", "stage"), legend="{{stage}}"),
                    ),
                ),
            ),
        ),
    ),
)
