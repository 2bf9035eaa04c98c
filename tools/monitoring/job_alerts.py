"""Define alerts about queues, nodes and training jobs."""

from __future__ import annotations

from typing import Final

from tools.monitoring.budget_alerts import BUDGETS
from tools.monitoring.model import Alert, AlertGroup

NEVER: Final = (
    "ExceedsQuota",
    "ExceedsCluster",
    "PoolWithoutNodes",
    "LevelLabelMissing",
    "ResourceNotOffered",
    "QueueNotFound",
    "PoolNotFound",
    "NoQuotaInPool",
    "NamespaceNotAllowed",
    "PriorityClassNotFound",
    "PriorityTooHigh",
    "TopologyLevelUnknown",
    "ResourceNotAllowed",
    "CapacityTypeNotAccepted",
    "PredecessorFailed",
    "PredecessorNotFound",
    "CircularDependency",
)
"""Reasons that do not disappear by waiting."""
_JOB: Final = "namespace, training_job, queue"
_LATE: Final = 'sum(increase(drumline_forecasts_total{start="late"}[1d]))'
_FORECAST: Final = 'sum(increase(drumline_forecasts_total{start!="unknown"}[1d]))'
_BROKEN: Final = (
    'max by (node, kind) (drumline_node_disrupted{kind=~"Hardware|Unhealthy",confidence="certain"})'
)
_PLACES: Final = f"max by ({_JOB}, node) (drumline_job_node)"
_FATAL_XIDS: Final = (48, 63, 64, 74, 79, 92, 94, 95)
"""Xids of uncorrectable ECC errors, row remapping, NVLink errors and GPUs off the bus. The GPU
needs a reset or a replacement (https://docs.nvidia.com/deploy/xid-errors)."""
_XIDS: Final = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {xid}" for xid in _FATAL_XIDS)
_WHY: Final = "drumline why -n {{ $labels.namespace }} {{ $labels.training_job }}"
_REPORT: Final = "drumline report -n {{ $labels.namespace }} {{ $labels.training_job }}"

QUEUES: Final = AlertGroup(
    name="drumline-queues",
    alerts=(
        Alert(
            name="DrumlineJobsNeverStart",
            expression="max by (queue, reason)"
            f' (drumline_pending_jobs{{reason=~"{"|".join(NEVER)}"}}) > 0',
            minutes=15,
            severity="warning",
            summary="{{ $value }} jobs of queue {{ $labels.queue }} wait with reason {{"
            " $labels.reason }}, which does not disappear by waiting.",
            command="kubectl get trainingjobs -A -o wide | grep {{ $labels.reason }}",
        ),
        Alert(
            name="DrumlineCreatesRejected",
            # A job that is tried again does not back off for a moment.
            expression="max by (queue)"
            ' (max_over_time(drumline_pending_jobs{reason="BackingOff"}[5m])) > 0',
            minutes=15,
            severity="warning",
            summary="{{ $value }} jobs of queue {{ $labels.queue }} wait because the API server"
            " rejects their pods or their starts fail.",
            command="kubectl get trainingjobs -A -o wide | grep BackingOff",
        ),
        Alert(
            name="DrumlineQueueDeletedInUse",
            expression="count by (queue)"
            f" (max by ({_JOB}) (drumline_job_gpus)) unless on (queue) max by (queue)"
            ' (drumline_queue_gpus{kind="nominal"})',
            minutes=5,
            severity="warning",
            summary="{{ $value }} jobs hold GPUs in queue {{ $labels.queue }}, which was deleted"
            " or has no quota. No quota counts these GPUs.",
            command="drumline queue {{ $labels.queue }}",
        ),
        Alert(
            name="DrumlinePoolDeletedInUse",
            expression="count by (gpu_pool)"
            f' (max by ({_JOB}, gpu_pool) (drumline_job_info{{gpu_pool!=""}})) unless on (gpu_pool)'
            ' max by (gpu_pool) (drumline_pool_gpus{kind="total"})',
            minutes=5,
            severity="warning",
            summary="{{ $value }} jobs hold GPUs in pool {{ $labels.gpu_pool }}, which was"
            " deleted. Lost pods of these jobs get no other node.",
            command="kubectl get gpupools",
        ),
        *BUDGETS,
        Alert(
            name="DrumlineGpusIdleWhileJobsWait",
            expression="sum(max by (queue, reason) (drumline_pending_jobs)) > 0 and"
            ' sum(max by (gpu_pool) (drumline_pool_gpus{kind="used"}))'
            ' < 0.7 * sum(max by (gpu_pool) (drumline_pool_gpus{kind="total"})) and'
            # an operator that has placed nothing since its start has no such counter
            " (sum(increase(drumline_gangs_placed_total[30m])) or vector(0)) == 0",
            minutes=30,
            severity="info",
            summary="{{ $value }} jobs wait, over 30 % of the GPUs are free, and no job was"
            " placed for 30 minutes.",
            command="kubectl get trainingjobs -A -o wide | grep Pending",
        ),
        Alert(
            name="DrumlineStartsSlow",
            expression="histogram_quantile(0.9, sum by (le)"
            " (rate(drumline_admission_to_running_seconds_bucket[1h]))) > 600 and"
            " sum(increase(drumline_admission_to_running_seconds_count[1h])) > 3",
            minutes=10,
            severity="warning",
            summary="A tenth of the gangs need more than {{ $value | humanizeDuration }} from"
            " admission until they run.",
            command="kubectl get pods -A -l drumline.dev/job --field-selector status.phase=Pending",
        ),
        Alert(
            name="DrumlineJobsFail",
            expression='sum(increase(drumline_jobs_finished_total{outcome="Failed"}[6h])) > 3 and'
            ' sum(increase(drumline_jobs_finished_total{outcome="Failed"}[6h]))'
            " > 0.5 * sum(increase(drumline_jobs_finished_total[6h]))",
            minutes=0,
            severity="warning",
            summary="More than half of the jobs that ended within six hours failed: {{ $value |"
            " humanize }}.",
            command="kubectl get trainingjobs -A -o wide | grep Failed",
        ),
        Alert(
            name="DrumlinePreemptionsPileUp",
            expression="sum by (reason) (increase(drumline_preemptions_total"
            '{reason!~"Moved|QueueDrained|QuotaLowered|BudgetSpent"}[1h])) > 20',
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} gangs were preempted within an hour, reason"
            " {{ $labels.reason }}.",
            command="kubectl get events -A --field-selector reason=Preempted",
        ),
        Alert(
            name="DrumlineCapacityRequestFailing",
            expression="sum by (gpu_pool)"
            ' (increase(drumline_node_requests_total{end=~"TimedOut|Refused"}[1h])) > 0 unless'
            " sum by (gpu_pool)"
            ' (increase(drumline_node_requests_total{end="Started"}[1h])) > 0',
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} requests for nodes of pool {{ $labels.gpu_pool }}"
            " timed out or were refused within an hour. No job got its nodes.",
            command="kubectl get pods -n drumline-system -l drumline.dev/node-demand -o wide",
        ),
        Alert(
            name="DrumlineEtaUncalibrated",
            expression=f"{_LATE} / {_FORECAST} > 0.25 and {_FORECAST} >= 20",
            minutes=60,
            severity="info",
            summary="{{ $value | humanizePercentage }} of the jobs with a forecast that started"
            " within a day started after their first expectedStartBy. The expected share is 10 %.",
            command="drumline queue",
        ),
    ),
)
NODES: Final = AlertGroup(
    name="drumline-nodes",
    alerts=(
        Alert(
            name="DrumlineNodeBroken",
            expression=_BROKEN,
            minutes=60,
            severity="warning",
            summary="Node {{ $labels.node }} has reported {{ $labels.kind }} for an hour. It"
            " needs repair.",
            command="kubectl describe node {{ $labels.node }}",
        ),
        Alert(
            name="DrumlineJobOnBrokenNode",
            expression=f"{_PLACES} * on (node) group_left (kind) {_BROKEN}",
            minutes=15,
            severity="warning",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} of queue {{"
            " $labels.queue }} is on node {{ $labels.node }}, which has reported {{"
            " $labels.kind }} for 15 minutes.",
            command=_WHY,
        ),
        Alert(
            name="DrumlineGpuFailsUnderJob",
            expression=f"{_PLACES} * on (node) group_left () max by (node)"
            f' (label_replace({_XIDS}, "node", "$1", "Hostname", "(.+)"))',
            minutes=0,
            severity="warning",
            summary="A GPU of node {{ $labels.node }} reports Xid {{ $value }}. {{"
            " $labels.namespace }}/{{ $labels.training_job }} of queue {{ $labels.queue"
            " }} runs there.",
            command="kubectl cordon {{ $labels.node }}",
        ),
        Alert(
            name="DrumlineNodesQuarantined",
            expression="max by (gpu_pool) (drumline_quarantined_nodes) > 0",
            minutes=30,
            severity="warning",
            summary="{{ $value }} nodes of pool {{ $labels.gpu_pool }} have taken no new pods"
            " for 30 minutes, because jobs or checks found them slow or faulty.",
            command="kubectl get gpupool {{ $labels.gpu_pool }} -o jsonpath='{.status.nodeHealth}'",
        ),
        Alert(
            name="DrumlineSpotStorm",
            expression="max(drumline_node_disruptions"
            '{kind="SpotReclaim",confidence="certain"}) > 4',
            minutes=0,
            severity="warning",
            summary="The cloud is reclaiming {{ $value }} spot nodes at the same time.",
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
            summary="A tenth of the recoveries take more than {{ $value | humanizeDuration }} in"
            " phase {{ $labels.phase }}.",
            command="kubectl get trainingjobs -A -o wide",
        ),
        Alert(
            name="DrumlineWorkRepeated",
            expression='sum by (queue) (rate(drumline_queue_gpu_seconds_total{state="repeated"}'
            "[6h])) / sum by (queue) (rate(drumline_queue_gpu_seconds_total[6h])) > 0.05",
            minutes=0,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the GPU time of queue {{ $labels.queue"
            " }} repeats steps that were lost in faults.",
            command="kubectl get trainingjobs -A -o wide",
        ),
        Alert(
            name="DrumlineGoodputLow",
            expression="max by (queue) (drumline_queue_goodput_ratio) < 0.8",
            minutes=60,
            severity="warning",
            summary="Only {{ $value | humanizePercentage }} of the GPU time of queue {{"
            " $labels.queue }} makes lasting training progress.",
            command="kubectl get trainingjobs -A -o wide",
        ),
    ),
)
JOBS: Final = AlertGroup(
    name="drumline-jobs",
    alerts=(
        Alert(
            name="DrumlineGangPartial",
            expression=f"max by ({_JOB}) (drumline_gang_missing_members) > 0",
            minutes=3,
            severity="critical",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} of queue {{"
            " $labels.queue }} holds GPUs although {{ $value }} of its members have had"
            " no pod since before its start deadline. This is an error of the operator.",
            command="kubectl get pods -n {{ $labels.namespace }}"
            " -l drumline.dev/job={{ $labels.training_job }} -o wide",
        ),
        Alert(
            name="DrumlineJobStalled",
            expression=f"max by ({_JOB}) (changes(drumline_trainer_step[30m])) == 0 and"
            f" max by ({_JOB}) (drumline_trainer_step)"
            f" < max by ({_JOB}) (drumline_trainer_total_steps)"
            # the window of a job that has just begun is shorter
            f" and max by ({_JOB}) (drumline_trainer_step offset 30m)",
            minutes=10,
            severity="warning",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} of queue"
            " {{ $labels.queue }} has made no step for 40 minutes.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineJobIdleGPUs",
            expression=f"max by ({_JOB}) (drumline_trainer_idle_seconds) > 0",
            minutes=5,
            severity="warning",
            summary="The GPUs of {{ $labels.namespace }}/{{ $labels.training_job }} of queue"
            " {{ $labels.queue }} have been idle for {{ $value | humanizeDuration }}.",
            command="drumline logs -n {{ $labels.namespace }} {{ $labels.training_job }}",
        ),
        Alert(
            name="DrumlineCheckpointOverdue",
            expression=f"max by ({_JOB}) (changes(drumline_trainer_checkpoint_step[6h])) == 0 and"
            f" max by ({_JOB}) (changes(drumline_trainer_step[6h])) > 0 and"
            f" max by ({_JOB}) (drumline_trainer_checkpoint_step offset 6h)",
            minutes=0,
            severity="warning",
            summary="{{ $labels.namespace }}/{{ $labels.training_job }} has trained for six"
            " hours without a new checkpoint. A fault would lose these hours.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineRankDown",
            expression=f"min by ({_JOB}) (drumline_trainer_rank_up) == 0",
            minutes=15,
            severity="warning",
            summary="A rank of {{ $labels.namespace }}/{{ $labels.training_job }} has not run"
            " for 15 minutes. The other ranks wait for it.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineStepsSlow",
            expression=f"max by ({_JOB}) (drumline_trainer_step_seconds"
            " / drumline_trainer_predicted_step_seconds) > 1.5",
            minutes=30,
            severity="info",
            summary="Steps of {{ $labels.namespace }}/{{ $labels.training_job }} take {{ $value"
            " | humanize }} times as long as the planner predicts.",
            command=_REPORT,
        ),
        Alert(
            name="DrumlineLossNotANumber",
            expression=f"count by ({_JOB}) (drumline_trainer_loss != drumline_trainer_loss)",
            minutes=0,
            severity="warning",
            summary="The loss of {{ $labels.namespace }}/{{ $labels.training_job }} is no longer"
            " a number (NaN).",
            command="drumline stop -n {{ $labels.namespace }} {{ $labels.training_job }}",
        ),
    ),
)
