"""Alerts about queues, nodes and training jobs."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.model import Alert, AlertGroup

NEVER: Final = (
    "ExceedsQuota",
    "ExceedsCluster",
    "QueueNotFound",
    "PoolNotFound",
    "NoQuotaInPool",
    "NamespaceNotAllowed",
    "PriorityTooHigh",
    "TopologyLevelUnknown",
)
"""Reasons that no waiting removes."""
_JOB: Final = "namespace, training_job, queue"
_REPORT: Final = "drumline report -n {{ $labels.namespace }} {{ $labels.training_job }}"

QUEUES: Final = AlertGroup(
    name="drumline-queues",
    alerts=(
        Alert(
            name="DrumlineJobsNeverStart",
            expression="max by (reason)"
            f' (drumline_pending_jobs{{reason=~"{"|".join(NEVER)}"}}) > 0',
            minutes=15,
            severity="warning",
            summary="{{ $value }} jobs wait with reason {{ $labels.reason }}, which waiting does"
            " not remove.",
            command="kubectl get trainingjobs -A -o wide | grep {{ $labels.reason }}",
        ),
        Alert(
            name="DrumlineCreatesRejected",
            expression='max(drumline_pending_jobs{reason="BackingOff"}) > 0',
            minutes=15,
            severity="warning",
            summary="{{ $value }} jobs wait because the API server rejects their pods, or their"
            " starts fail.",
            command="kubectl get trainingjobs -A -o wide | grep BackingOff",
        ),
        Alert(
            name="DrumlineQueueBudgetLow",
            expression="max by (queue) (drumline_queue_budget_spent_gpu_seconds)"
            " / max by (queue) (drumline_queue_budget_gpu_seconds) >= 0.8",
            minutes=15,
            severity="info",
            summary="Queue {{ $labels.queue }} has spent {{ $value | humanizePercentage }} of its"
            " GPU-hours; none of its jobs starts once all are spent.",
            command="drumline queue {{ $labels.queue }}",
        ),
        Alert(
            name="DrumlineGpusIdleWhileJobsWait",
            expression="sum(max by (reason) (drumline_pending_jobs)) > 0 and"
            ' sum(max by (gpu_pool) (drumline_pool_gpus{kind="used"}))'
            ' < 0.7 * sum(max by (gpu_pool) (drumline_pool_gpus{kind="total"})) and'
            " sum(increase(drumline_gangs_placed_total[30m])) == 0",
            minutes=30,
            severity="info",
            summary="{{ $value }} jobs wait, over 30 % of the GPUs are free, and nothing was placed"
            " for half an hour.",
            command="kubectl get trainingjobs -A -o wide --field-selector status.phase=Pending",
        ),
        Alert(
            name="DrumlineStartsSlow",
            expression="histogram_quantile(0.9, sum by (le)"
            " (rate(drumline_admission_to_running_seconds_bucket[1h]))) > 600 and"
            " sum(increase(drumline_admission_to_running_seconds_count[1h])) > 3",
            minutes=10,
            severity="warning",
            summary="From admission until a gang runs, a tenth of them need more than"
            " {{ $value | humanizeDuration }}.",
            command="kubectl get pods -A -l drumline.dev/job --field-selector status.phase=Pending",
        ),
        Alert(
            name="DrumlineJobsFail",
            expression='sum(increase(drumline_jobs_finished_total{outcome="Failed"}[6h])) > 3 and'
            ' sum(increase(drumline_jobs_finished_total{outcome="Failed"}[6h]))'
            " > 0.5 * sum(increase(drumline_jobs_finished_total[6h]))",
            minutes=0,
            severity="warning",
            summary="More than half of the jobs that ended within six hours have failed:"
            " {{ $value | humanize }}.",
            command="kubectl get trainingjobs -A -o wide | grep Failed",
        ),
        Alert(
            name="DrumlinePreemptionsPileUp",
            expression="sum by (reason)"
            ' (increase(drumline_preemptions_total{reason!="Moved"}[1h])) > 20',
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} gangs were preempted within an hour, reason"
            " {{ $labels.reason }}.",
            command="kubectl get events -A --field-selector reason=Preempted",
        ),
    ),
)
NODES: Final = AlertGroup(
    name="drumline-nodes",
    alerts=(
        Alert(
            name="DrumlineNodeBroken",
            expression="max by (kind)"
            ' (drumline_node_disruptions{kind=~"Hardware|Unhealthy",confidence="certain"}) > 0',
            minutes=60,
            severity="warning",
            summary="{{ $value }} nodes announce {{ $labels.kind }} for an hour: nobody repairs"
            " them.",
            command="drumline nodes",
        ),
        Alert(
            name="DrumlineSpotStorm",
            expression="max(drumline_node_disruptions"
            '{kind="SpotReclaim",confidence="certain"}) > 4',
            minutes=0,
            severity="warning",
            summary="{{ $value }} spot nodes are being taken back at the same time.",
            command="drumline nodes",
        ),
        Alert(
            name="DrumlineRecoveriesPileUp",
            expression="sum by (class) (increase(drumline_incidents_total[1h])) > 20",
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} recoveries within an hour, of class"
            " {{ $labels.class }}.",
            command="kubectl get trainingjobs -A -o wide",
        ),
        Alert(
            name="DrumlineRecoverySlow",
            expression="histogram_quantile(0.9, sum by (le, phase)"
            " (rate(drumline_incident_seconds_bucket[6h]))) > 300",
            minutes=0,
            severity="info",
            summary="A tenth of the recoveries spend more than {{ $value | humanizeDuration }} in"
            " phase {{ $labels.phase }}.",
            command="kubectl get trainingjobs -A -o wide",
        ),
        Alert(
            name="DrumlineWorkRepeated",
            expression='sum(rate(drumline_job_gpu_seconds_total{state="repeated"}[6h]))'
            " / sum(rate(drumline_job_gpu_seconds_total[6h])) > 0.05",
            minutes=0,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the GPU time repeats steps that faults"
            " undid.",
            command="kubectl get trainingjobs -A -o wide",
        ),
        Alert(
            name="DrumlineGoodputLow",
            expression="max by (queue) (drumline_queue_goodput_ratio) < 0.8",
            minutes=60,
            severity="warning",
            summary="Only {{ $value | humanizePercentage }} of the GPU time of queue"
            " {{ $labels.queue }} trains for the first time.",
            command="kubectl get trainingjobs -A -o wide",
        ),
    ),
)
JOBS: Final = AlertGroup(
    name="drumline-jobs",
    alerts=(
        Alert(
            name="DrumlineJobStalled",
            expression=f"max by ({_JOB}) (changes(drumline_trainer_step[30m])) == 0 and"
            f" max by ({_JOB}) (drumline_trainer_step)"
            f" < max by ({_JOB}) (drumline_trainer_total_steps)",
            minutes=10,
            severity="warning",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} of queue"
            " {{ $labels.queue }} has made no step for 40 minutes.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineCheckpointOverdue",
            expression=f"max by ({_JOB}) (changes(drumline_trainer_checkpoint_step[6h])) == 0 and"
            f" max by ({_JOB}) (changes(drumline_trainer_step[6h])) > 0 and"
            f" max by ({_JOB}) (drumline_trainer_checkpoint_step offset 6h)",
            minutes=0,
            severity="warning",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} has trained for six hours"
            " without a new checkpoint: a fault would undo them.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineRankDown",
            expression=f"min by ({_JOB}) (drumline_trainer_rank_up) == 0",
            minutes=15,
            severity="warning",
            summary="A rank of {{ $labels.namespace }}/{{ $labels.training_job }} has not run for"
            " 15 minutes; the others wait for it.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineStepsSlow",
            expression=f"max by ({_JOB}) (drumline_trainer_step_seconds"
            " / drumline_trainer_predicted_step_seconds) > 1.5",
            minutes=30,
            severity="info",
            summary="Steps of {{ $labels.namespace }}/{{ $labels.training_job }} take {{ $value |"
            " humanize }} times what the planner predicts.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineLossNotANumber",
            expression=f"count by ({_JOB}) (drumline_trainer_loss != drumline_trainer_loss)",
            minutes=0,
            severity="warning",
            summary="The loss of {{ $labels.namespace }}/{{ $labels.training_job }} is not a number"
            " any more.",
            command="drumline stop -n {{ $labels.namespace }} {{ $labels.training_job }}",
        ),
    ),
)
