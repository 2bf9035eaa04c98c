"""One team's queue: quota, use, waiting, and what its GPU time was good for."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.panels import Board, Panel, PanelRow, Query, Variable, quantile

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
        PanelRow(
            title="Quota",
            panels=(
                Panel(
                    title="GPUs held and promised",
                    description="Above the promise it borrows from its cohort.",
                    queries=(
                        Query(expression=_gpus("used"), legend="{{queue}} {{gpu_pool}} held"),
                        Query(expression=_gpus("nominal"), legend="{{queue}} {{gpu_pool}} quota"),
                    ),
                ),
                Panel(
                    title="Borrowed",
                    description="GPUs beyond the queue's own quota: another queue of the cohort may"
                    " reclaim them.",
                    queries=(
                        Query(
                            expression=f"clamp_min({_gpus('used')} - {_gpus('nominal')}, 0)",
                            legend="{{queue}} {{gpu_pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Budget spent",
                    description="Share of its GPU-hours, and of its money, that the queue's jobs"
                    " had on the days that count. At 1, with credit later, none of them starts.",
                    unit="percentunit",
                    queries=(
                        Query(
                            expression="max by (queue)"
                            f" (drumline_queue_budget_spent_gpu_seconds{_QUEUE})"
                            f" / max by (queue) (drumline_queue_budget_gpu_seconds{_QUEUE})",
                            legend="{{queue}} GPU-hours",
                        ),
                        Query(
                            expression="max by (queue)"
                            f" (drumline_queue_budget_credit_gpu_seconds{_QUEUE})"
                            f" / max by (queue) (drumline_queue_budget_gpu_seconds{_QUEUE}) + 1",
                            legend="{{queue}} with credit",
                        ),
                        Query(
                            expression="max by (queue)"
                            f" (drumline_queue_budget_spent_cost{_QUEUE})"
                            f" / max by (queue) (drumline_queue_budget_cost{_QUEUE})",
                            legend="{{queue}} money",
                        ),
                    ),
                ),
                Panel(
                    title="Budget spent by user",
                    description="Where the queue's budget limits each user's GPU-hours: the share"
                    " of them that a user's jobs had, of the ten users with most. At 1 none of"
                    " their jobs starts.",
                    unit="percentunit",
                    queries=(
                        Query(
                            expression="topk(10, max by (queue, user)"
                            f" (drumline_queue_budget_user_spent_gpu_seconds{_QUEUE})"
                            " / on (queue) group_left () max by (queue)"
                            f" (drumline_queue_budget_user_gpu_seconds{_QUEUE}))",
                            legend="{{queue}} {{user}}",
                        ),
                    ),
                ),
                Panel(
                    title="Goodput",
                    description="Share of the queue's GPU time that trained for the first time."
                    " Below 0.9: many faults, or slow starts.",
                    unit="percentunit",
                    at_most=1,
                    queries=(
                        Query(
                            expression=f"max by (queue) (drumline_queue_goodput_ratio{_QUEUE})",
                            legend="{{queue}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Waiting",
            panels=(
                Panel(
                    title="Time in the queue, p90",
                    description="One in ten jobs that were admitted had waited longer.",
                    unit="s",
                    queries=(
                        Query(
                            expression=quantile(
                                0.9, "drumline_queue_wait_seconds", by="queue", selector=_QUEUE
                            ),
                            legend="{{queue}}",
                        ),
                    ),
                ),
                Panel(
                    title="Gangs placed",
                    description="In the interval.",
                    queries=(
                        Query(
                            expression="sum by (queue) (increase("
                            f"drumline_gangs_placed_total{_QUEUE}[$__rate_interval]))",
                            legend="{{queue}}",
                        ),
                    ),
                ),
                Panel(
                    title="Expected starts, later than said",
                    description="Of all queues, in a day: of good forecasts half the jobs start"
                    " after expectedStart, and one in ten after expectedStartBy.",
                    unit="percentunit",
                    at_most=1,
                    queries=(
                        Query(expression=_started("band|late"), legend="after expectedStart"),
                        Query(expression=_started("late"), legend="after expectedStartBy"),
                    ),
                ),
                Panel(
                    title="Error of expected starts",
                    description="Of the first forecast of each job, as a fraction of its wait.",
                    unit="percentunit",
                    queries=(
                        Query(
                            expression="histogram_quantile(0.5, sum by (le) (increase("
                            "drumline_forecast_error_ratio_bucket[1d])))",
                            legend="median",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Who has the GPUs",
            panels=(
                Panel(
                    title="GPUs by user",
                    description="What the queue's jobs hold, by spec.user. Summed over time it is a"
                    " bill: docs/operations.md. Needs networkPolicy.metricsFrom.",
                    stacked=True,
                    queries=(
                        Query(
                            expression="sum by (user)"
                            f" (max by (namespace, training_job) (drumline_job_gpus{_QUEUE})"
                            " * on (namespace, training_job) group_left (user)"
                            " max by (namespace, training_job, user)"
                            f" (drumline_job_info{_QUEUE}))",
                            legend="{{user}}",
                        ),
                    ),
                ),
                Panel(
                    title="GPUs by job",
                    description="The ten that hold most. Needs networkPolicy.metricsFrom.",
                    queries=(
                        Query(
                            expression="topk(10, max by (namespace, training_job)"
                            f" (drumline_job_gpus{_QUEUE}))",
                            legend="{{namespace}}/{{training_job}}",
                        ),
                    ),
                ),
                Panel(
                    title="What GPUs are held for",
                    description="GPU-seconds a second of the queue's jobs, so GPUs.",
                    stacked=True,
                    queries=(
                        Query(
                            expression="sum by (state) (rate("
                            f"drumline_queue_gpu_seconds_total{_QUEUE}[$__rate_interval]))",
                            legend="{{state}}",
                        ),
                    ),
                ),
                Panel(
                    title="Waiting jobs by reason",
                    description="docs/operations.md has what to do for each.",
                    stacked=True,
                    queries=(
                        Query(
                            expression="sum by (reason)"
                            f" (max by (queue, reason) (drumline_pending_jobs{_QUEUE}))",
                            legend="{{reason}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Jobs that train",
            panels=(
                Panel(
                    title="Tokens per second",
                    description="By job, over all its ranks.",
                    queries=(
                        Query(
                            expression="max by (namespace, training_job)"
                            f" (drumline_trainer_tokens_per_second{_QUEUE})",
                            legend="{{namespace}}/{{training_job}}",
                        ),
                    ),
                ),
                Panel(
                    title="Progress",
                    description="Finished steps of all steps.",
                    kind="bargauge",
                    unit="percentunit",
                    at_most=1,
                    queries=(
                        Query(
                            expression="max by (namespace, training_job)"
                            f" (drumline_trainer_step{_QUEUE})"
                            " / max by (namespace, training_job)"
                            f" (drumline_trainer_total_steps{_QUEUE})",
                            legend="{{namespace}}/{{training_job}}",
                        ),
                    ),
                ),
                Panel(
                    title="Model FLOP utilization",
                    description="By job; absent where the peak of the device is not known.",
                    unit="percentunit",
                    queries=(
                        Query(
                            expression="avg by (namespace, training_job)"
                            f" (drumline_trainer_mfu_ratio{_QUEUE})",
                            legend="{{namespace}}/{{training_job}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
