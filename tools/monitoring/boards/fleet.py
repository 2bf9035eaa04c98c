"""The whole fleet: how many GPUs there are, what they do, who waits and why."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import Board, Query, Variable, panel, quantile, row

_POOLS: Final = 'gpu_pool=~"$gpu_pool"'


def _gpus(kind: str) -> str:
    return f'max by (gpu_pool) (drumline_pool_gpus{{kind="{kind}",{_POOLS}}})'


FLEET: Final = Board(
    name="fleet",
    title="Fleet",
    description="GPUs of all pools: held, training for the first time, wanted.",
    variables=(Variable(name="gpu_pool", metric="drumline_pool_gpus", label="gpu_pool"),),
    rows=(
        row(
            "Now",
            panel(
                "GPUs held",
                "Share of all GPUs that pods hold, those of others included.",
                Query(f"sum({_gpus('used')}) / sum({_gpus('total')})"),
                kind="stat",
                unit="percentunit",
                at_most=1,
            ),
            panel(
                "Training for the first time",
                "Share of the GPU time of jobs that was neither start, recovery nor repetition.",
                Query(
                    "sum(rate(drumline_queue_gpu_seconds_total"
                    '{state="productive"}[$__rate_interval]))'
                    " / sum(rate(drumline_queue_gpu_seconds_total[$__rate_interval]))"
                ),
                kind="stat",
                unit="percentunit",
                at_most=1,
            ),
            panel(
                "Jobs that wait",
                "All of them; the reasons are below.",
                Query("sum(max by (queue, reason) (drumline_pending_jobs))"),
                kind="stat",
            ),
            panel(
                "Nodes that will go or are broken",
                "Announced ends of nodes that are certain.",
                Query('sum(max by (kind) (drumline_node_disruptions{confidence="certain"}))'),
                kind="stat",
            ),
        ),
        row(
            "GPUs",
            panel(
                "GPUs by pool",
                "Held, and how many there are.",
                Query(_gpus("used"), "{{gpu_pool}} held"),
                Query(_gpus("total"), "{{gpu_pool}} all"),
            ),
            panel(
                "What GPUs are held for",
                (
                    "GPU-seconds a second, so GPUs: training for the first time,"
                    " repeating what a fault undid, starting, recovering."
                ),
                Query(
                    "sum by (state) (rate(drumline_queue_gpu_seconds_total[$__rate_interval]))",
                    "{{state}}",
                ),
                stacked=True,
            ),
        ),
        row(
            "Who waits",
            panel(
                "Waiting jobs by reason",
                (
                    "Reasons that begin with Exceeds or end with NotFound are not"
                    " removed by waiting: docs/troubleshooting.md has what to do for each."
                ),
                Query(
                    "sum by (reason) (max by (queue, reason) (drumline_pending_jobs))",
                    "{{reason}}",
                ),
                stacked=True,
            ),
            panel(
                "Time in the queue",
                (
                    "Of the jobs that were admitted: half waited less than the first"
                    " line, one in ten more than the second, one in a hundred more than the third."
                ),
                *tuple(
                    Query(
                        quantile(share, "drumline_queue_wait_seconds", by=""), f"p{share * 100:.0f}"
                    )
                    for share in (0.5, 0.9, 0.99)
                ),
                unit="s",
            ),
            panel(
                "From admission until the gang runs",
                "Pods, images, claims and the agents' first meeting.",
                *tuple(
                    Query(
                        quantile(share, "drumline_admission_to_running_seconds", by=""),
                        f"p{share * 100:.0f}",
                    )
                    for share in (0.5, 0.9)
                ),
                unit="s",
            ),
        ),
        row(
            "What happens",
            panel(
                "Gangs placed",
                "In the interval, by pool.",
                Query(
                    (
                        "sum by (gpu_pool) (increase("
                        f"drumline_gangs_placed_total{{{_POOLS}}}[$__rate_interval]))"
                    ),
                    "{{gpu_pool}}",
                ),
            ),
            panel(
                "Jobs that ended",
                "In the interval, by outcome.",
                Query(
                    "sum by (outcome) (increase(drumline_jobs_finished_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            panel(
                "Requests for nodes",
                (
                    "In the interval, by pool and how they ended. TimedOut: the"
                    " autoscaler brought none."
                ),
                Query(
                    (
                        "sum by (gpu_pool, end) (increase("
                        f"drumline_node_requests_total{{{_POOLS}}}[$__rate_interval]))"
                    ),
                    "{{gpu_pool}} {{end}}",
                ),
            ),
            panel(
                "Preemptions and moves",
                "Gangs that gave way, by reason, and gangs asked to move.",
                Query(
                    "sum by (reason) (increase(drumline_preemptions_total[$__rate_interval]))",
                    "preempted: {{reason}}",
                ),
                Query(
                    "sum by (reason) (increase(drumline_moves_total[$__rate_interval]))",
                    "moved: {{reason}}",
                ),
            ),
        ),
    ),
)
