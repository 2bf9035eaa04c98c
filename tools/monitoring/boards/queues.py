"""One team's queue: quota, use, waiting, and what its GPU time was good for."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import Board, Query, Variable, panel, quantile, row

_QUEUE: Final = '{queue=~"$queue"}'


def _gpus(kind: str) -> str:
    selector = f'{{kind="{kind}",queue=~"$queue"}}'
    return f"max by (queue, gpu_pool) (drumline_queue_gpus{selector})"


def _started(when: str) -> str:
    """The share of the forecast jobs that started then."""
    some = f'sum(increase(drumline_forecasts_total{{start=~"{when}"}}[1d]))'
    return f'{some} / sum(increase(drumline_forecasts_total{{start!="unknown"}}[1d]))'


QUEUES: Final = Board(
    name="queues",
    title="Queues",
    description="What a team may hold, holds and waits for.",
    variables=(Variable(name="queue", metric="drumline_queue_gpus", label="queue"),),
    rows=(
        row(
            "Quota",
            panel(
                "GPUs held and promised",
                "Above the promise it borrows from its cohort.",
                Query(_gpus("used"), "{{queue}} {{gpu_pool}} held"),
                Query(_gpus("nominal"), "{{queue}} {{gpu_pool}} quota"),
            ),
            panel(
                "Borrowed",
                (
                    "GPUs beyond the queue's own quota: another queue of the cohort may"
                    " reclaim them."
                ),
                Query(
                    f"clamp_min({_gpus('used')} - {_gpus('nominal')}, 0)", "{{queue}} {{gpu_pool}}"
                ),
            ),
            panel(
                "Budget spent",
                (
                    "Share of its GPU-hours, and of its money, that the queue's jobs"
                    " had on the days that count. At 1, with credit later, none of them starts."
                ),
                Query(
                    (
                        "max by (queue)"
                        f" (drumline_queue_budget_spent_gpu_seconds{_QUEUE})"
                        f" / max by (queue) (drumline_queue_budget_gpu_seconds{_QUEUE})"
                    ),
                    "{{queue}} GPU-hours",
                ),
                Query(
                    (
                        "max by (queue)"
                        f" (drumline_queue_budget_credit_gpu_seconds{_QUEUE})"
                        f" / max by (queue) (drumline_queue_budget_gpu_seconds{_QUEUE}) + 1"
                    ),
                    "{{queue}} with credit",
                ),
                Query(
                    (
                        "max by (queue)"
                        f" (drumline_queue_budget_spent_cost{_QUEUE})"
                        f" / max by (queue) (drumline_queue_budget_cost{_QUEUE})"
                    ),
                    "{{queue}} money",
                ),
                unit="percentunit",
            ),
            panel(
                "Budget spent by user",
                (
                    "Where the queue's budget limits each user's GPU-hours: the share"
                    " of them that a user's jobs had, of the ten users with most. At 1 none of"
                    " their jobs starts."
                ),
                Query(
                    (
                        "topk(10, max by (queue, user)"
                        f" (drumline_queue_budget_user_spent_gpu_seconds{_QUEUE})"
                        " / on (queue) group_left () max by (queue)"
                        f" (drumline_queue_budget_user_gpu_seconds{_QUEUE}))"
                    ),
                    "{{queue}} {{user}}",
                ),
                unit="percentunit",
            ),
            panel(
                "Goodput",
                (
                    "Share of the queue's GPU time that trained for the first time."
                    " Below 0.9: many faults, or slow starts."
                ),
                Query(f"max by (queue) (drumline_queue_goodput_ratio{_QUEUE})", "{{queue}}"),
                unit="percentunit",
                at_most=1,
            ),
        ),
        row(
            "Waiting",
            panel(
                "Time in the queue, p90",
                "One in ten jobs that were admitted had waited longer.",
                Query(
                    quantile(0.9, "drumline_queue_wait_seconds", by="queue", selector=_QUEUE),
                    "{{queue}}",
                ),
                unit="s",
            ),
            panel(
                "Gangs placed",
                "In the interval.",
                Query(
                    (
                        "sum by (queue) (increase("
                        f"drumline_gangs_placed_total{_QUEUE}[$__rate_interval]))"
                    ),
                    "{{queue}}",
                ),
            ),
            panel(
                "Expected starts, later than said",
                (
                    "Of all queues, in a day: of good forecasts half the jobs start"
                    " after expectedStart, and one in ten after expectedStartBy."
                ),
                Query(_started("band|late"), "after expectedStart"),
                Query(_started("late"), "after expectedStartBy"),
                unit="percentunit",
                at_most=1,
            ),
            panel(
                "Error of expected starts",
                "Of the first forecast of each job, as a fraction of its wait.",
                Query(
                    (
                        "histogram_quantile(0.5, sum by (le) (increase("
                        "drumline_forecast_error_ratio_bucket[1d])))"
                    ),
                    "median",
                ),
                unit="percentunit",
            ),
        ),
        row(
            "Who has the GPUs",
            panel(
                "GPUs by user",
                (
                    "What the queue's jobs hold, by spec.user. Summed over time it is a"
                    " bill: docs/monitoring.md. Needs networkPolicy.metricsFrom."
                ),
                Query(
                    (
                        "sum by (user)"
                        f" (max by (namespace, training_job) (drumline_job_gpus{_QUEUE})"
                        " * on (namespace, training_job) group_left (user)"
                        " max by (namespace, training_job, user)"
                        f" (drumline_job_info{_QUEUE}))"
                    ),
                    "{{user}}",
                ),
                stacked=True,
            ),
            panel(
                "GPUs by job",
                "The ten that hold most. Needs networkPolicy.metricsFrom.",
                Query(
                    f"topk(10, max by (namespace, training_job) (drumline_job_gpus{_QUEUE}))",
                    "{{namespace}}/{{training_job}}",
                ),
            ),
            panel(
                "What GPUs are held for",
                "GPU-seconds a second of the queue's jobs, so GPUs.",
                Query(
                    (
                        "sum by (state) (rate("
                        f"drumline_queue_gpu_seconds_total{_QUEUE}[$__rate_interval]))"
                    ),
                    "{{state}}",
                ),
                stacked=True,
            ),
            panel(
                "Waiting jobs by reason",
                "docs/troubleshooting.md has what to do for each.",
                Query(
                    f"sum by (reason) (max by (queue, reason) (drumline_pending_jobs{_QUEUE}))",
                    "{{reason}}",
                ),
                stacked=True,
            ),
        ),
        row(
            "Jobs that train",
            panel(
                "Tokens per second",
                "By job, over all its ranks.",
                Query(
                    (
                        "max by (namespace, training_job)"
                        f" (drumline_trainer_tokens_per_second{_QUEUE})"
                    ),
                    "{{namespace}}/{{training_job}}",
                ),
            ),
            panel(
                "Progress",
                "Finished steps of all steps.",
                Query(
                    (
                        "max by (namespace, training_job)"
                        f" (drumline_trainer_step{_QUEUE})"
                        " / max by (namespace, training_job)"
                        f" (drumline_trainer_total_steps{_QUEUE})"
                    ),
                    "{{namespace}}/{{training_job}}",
                ),
                kind="bargauge",
                unit="percentunit",
                at_most=1,
            ),
            panel(
                "Model FLOP utilization",
                "By job; absent where the peak of the device is not known.",
                Query(
                    f"avg by (namespace, training_job) (drumline_trainer_mfu_ratio{_QUEUE})",
                    "{{namespace}}/{{training_job}}",
                ),
                unit="percentunit",
            ),
        ),
    ),
)
