"""The whole fleet: how many GPUs there are, what they do, who waits and why."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.panels import Board, Panel, PanelRow, Query, Variable, quantile

_POOLS: Final = 'gpu_pool=~"$gpu_pool"'


def _gpus(kind: str) -> str:
    return f'max by (gpu_pool) (drumline_pool_gpus{{kind="{kind}",{_POOLS}}})'


FLEET: Final = Board(
    name="fleet",
    title="Fleet",
    description="GPUs of all pools: held, training for the first time, wanted.",
    variables=(Variable(name="gpu_pool", metric="drumline_pool_gpus", label="gpu_pool"),),
    rows=(
        PanelRow(
            title="Now",
            panels=(
                Panel(
                    title="GPUs held",
                    description="Share of all GPUs that pods hold, those of others included.",
                    kind="stat",
                    unit="percentunit",
                    at_most=1,
                    queries=(Query(expression=f"sum({_gpus('used')}) / sum({_gpus('total')})"),),
                ),
                Panel(
                    title="Training for the first time",
                    description="Share of the GPU time of jobs that was neither start, recovery nor"
                    " repetition.",
                    kind="stat",
                    unit="percentunit",
                    at_most=1,
                    queries=(
                        Query(
                            expression="sum(rate(drumline_queue_gpu_seconds_total"
                            '{state="productive"}[$__rate_interval]))'
                            " / sum(rate(drumline_queue_gpu_seconds_total[$__rate_interval]))"
                        ),
                    ),
                ),
                Panel(
                    title="Jobs that wait",
                    description="All of them; the reasons are below.",
                    kind="stat",
                    queries=(
                        Query(expression="sum(max by (queue, reason) (drumline_pending_jobs))"),
                    ),
                ),
                Panel(
                    title="Nodes that will go or are broken",
                    description="Announced ends of nodes that are certain.",
                    kind="stat",
                    queries=(
                        Query(
                            expression="sum(max by (kind)"
                            ' (drumline_node_disruptions{confidence="certain"}))'
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="GPUs",
            panels=(
                Panel(
                    title="GPUs by pool",
                    description="Held, and how many there are.",
                    queries=(
                        Query(expression=_gpus("used"), legend="{{gpu_pool}} held"),
                        Query(expression=_gpus("total"), legend="{{gpu_pool}} all"),
                    ),
                ),
                Panel(
                    title="What GPUs are held for",
                    description="GPU-seconds a second, so GPUs: training for the first time,"
                    " repeating what a fault undid, starting, recovering.",
                    stacked=True,
                    queries=(
                        Query(
                            expression="sum by (state)"
                            " (rate(drumline_queue_gpu_seconds_total[$__rate_interval]))",
                            legend="{{state}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Who waits",
            panels=(
                Panel(
                    title="Waiting jobs by reason",
                    description="Reasons that begin with Exceeds or end with NotFound are not"
                    " removed by waiting: docs/operations.md has what to do for each.",
                    stacked=True,
                    queries=(
                        Query(
                            expression="sum by (reason)"
                            " (max by (queue, reason) (drumline_pending_jobs))",
                            legend="{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time in the queue",
                    description="Of the jobs that were admitted: half waited less than the first"
                    " line, one in ten more than the second, one in a hundred more than the third.",
                    unit="s",
                    queries=tuple(
                        Query(
                            expression=quantile(share, "drumline_queue_wait_seconds", by=""),
                            legend=f"p{share * 100:.0f}",
                        )
                        for share in (0.5, 0.9, 0.99)
                    ),
                ),
                Panel(
                    title="From admission until the gang runs",
                    description="Pods, images, claims and the agents' first meeting.",
                    unit="s",
                    queries=tuple(
                        Query(
                            expression=quantile(
                                share, "drumline_admission_to_running_seconds", by=""
                            ),
                            legend=f"p{share * 100:.0f}",
                        )
                        for share in (0.5, 0.9)
                    ),
                ),
            ),
        ),
        PanelRow(
            title="What happens",
            panels=(
                Panel(
                    title="Gangs placed",
                    description="In the interval, by pool.",
                    queries=(
                        Query(
                            expression="sum by (gpu_pool) (increase("
                            f"drumline_gangs_placed_total{{{_POOLS}}}[$__rate_interval]))",
                            legend="{{gpu_pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Jobs that ended",
                    description="In the interval, by outcome.",
                    queries=(
                        Query(
                            expression="sum by (outcome)"
                            " (increase(drumline_jobs_finished_total[$__rate_interval]))",
                            legend="{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests for nodes",
                    description="In the interval, by pool and how they ended. TimedOut: the"
                    " autoscaler brought none.",
                    queries=(
                        Query(
                            expression="sum by (gpu_pool, end) (increase("
                            f"drumline_node_requests_total{{{_POOLS}}}[$__rate_interval]))",
                            legend="{{gpu_pool}} {{end}}",
                        ),
                    ),
                ),
                Panel(
                    title="Preemptions and moves",
                    description="Gangs that gave way, by reason, and gangs asked to move.",
                    queries=(
                        Query(
                            expression="sum by (reason)"
                            " (increase(drumline_preemptions_total[$__rate_interval]))",
                            legend="preempted: {{reason}}",
                        ),
                        Query(
                            expression="sum by (reason)"
                            " (increase(drumline_moves_total[$__rate_interval]))",
                            legend="moved: {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
