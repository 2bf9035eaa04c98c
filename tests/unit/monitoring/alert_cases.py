"""For each alert, samples a minute apart that fire it, and others near them that do not.

Values are written as promtool takes them: `0+2x3` is 0 2 4 6, `5x2` is 5 5 5, `_` is no sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Samples = Mapping[str, str]
"""By series: its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCase:
    """One alert.

    Attributes:
        fires: samples that fire it.
        at_minutes: when both are looked at.
        labels: of the alert that fires, beside its severity.
        value: figure in its summary; empty if the summary has none.
        silent: samples that do not fire it.
    """

    fires: Samples
    at_minutes: int
    value: str = ""
    silent: Samples
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


_JOB = {"namespace": "research", "training_job": "llama", "queue": "nlp"}


def _of_job(metric: str, **more: str) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in (_JOB | more).items())
    return f"{metric}{{{labels}}}"


def _disrupted(*, kind: str = "Hardware", confidence: str = "certain") -> str:
    return f'drumline_node_disrupted{{node="gpu-7",kind="{kind}",confidence="{confidence}"}}'


def _buckets(metric: str, counts: Mapping[str, str], **labels: str) -> Samples:
    """The series of a histogram: by `le`, their values."""
    shared = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {f'{metric}_bucket{{le="{bound}"{shared}}}': values for bound, values in counts.items()}


CASES: Mapping[str, AlertCase] = {
    "DrumlineNoLeader": AlertCase(
        fires={  # another installation has a leader
            'drumline_leader{instance="a",namespace="one"}': "0x10",
            'drumline_leader{instance="b",namespace="two"}': "1x10",
        },
        at_minutes=3,
        labels={"namespace": "one"},
        silent={'drumline_leader{instance="a"}': "0x10", 'drumline_leader{instance="b"}': "1x10"},
    ),
    "DrumlineTwoLeaders": AlertCase(
        fires={
            'drumline_leader{instance="a",namespace="one"}': "1x10",
            'drumline_leader{instance="b",namespace="one"}': "1x10",
        },
        at_minutes=3,
        labels={"namespace": "one"},
        value="2",
        silent={  # one took over and is scraped twice, and another installation has a leader
            'drumline_leader{instance="a",namespace="one"}': "1 1 0x8",
            'drumline_leader{instance="b",namespace="one"}': "0 1x9",
            'drumline_leader{instance="b",namespace="one",job="monitor"}': "0 1x9",
            'drumline_leader{instance="c",namespace="two"}': "1x10",
        },
    ),
    "DrumlineOperatorRestarts": AlertCase(
        fires={
            'process_start_time_seconds{instance="a"}': "0+60x4 240x56",
            'drumline_build_info{instance="a"}': "1x60",
        },
        at_minutes=59,
        labels={"instance": "a"},
        value="4",
        silent={'process_start_time_seconds{instance="other"}': "0+60x60"},
    ),
    "DrumlineWatchStale": AlertCase(
        fires={'drumline_informer_freshness_seconds{instance="a",resource="pods"}': "150x10"},
        at_minutes=3,
        labels={"instance": "a", "resource": "pods"},
        value="2m 30s",
        silent={'drumline_informer_freshness_seconds{instance="a",resource="pods"}': "70x10"},
    ),
    "DrumlineReconcileErrorsFast": AlertCase(
        fires={
            "drumline_reconcile_errors_total": "0+20x90",
            "drumline_reconcile_seconds_count": "0+100x90",
        },
        at_minutes=70,
        value="20%",
        silent={  # it is over: the long window alone remembers it
            "drumline_reconcile_errors_total": "0+20x60 1200x30",
            "drumline_reconcile_seconds_count": "0+100x90",
        },
    ),
    "DrumlineReconcileErrorsSlow": AlertCase(
        fires={
            "drumline_reconcile_errors_total": "0+7x420",
            "drumline_reconcile_seconds_count": "0+100x420",
        },
        at_minutes=420,
        value="7%",
        silent={
            "drumline_reconcile_errors_total": "0+5x420",
            "drumline_reconcile_seconds_count": "0+100x420",
        },
    ),
    "DrumlineApiRequestsFail": AlertCase(
        fires={
            'drumline_api_requests_total{code="503"}': "0+10x40",
            'drumline_api_requests_total{code="200"}': "0+90x40",
        },
        at_minutes=25,
        value="10%",
        silent={
            'drumline_api_requests_total{code="404"}': "0+50x40",
            'drumline_api_requests_total{code="200"}': "0+50x40",
        },
    ),
    "DrumlineCyclesSlow": AlertCase(
        fires=_buckets(
            "drumline_scheduling_cycle_seconds",
            {"2": "0x40", "4": "0+10x40", "+Inf": "0+10x40"},
            phase="place",
        ),
        at_minutes=30,
        labels={"phase": "place"},
        value="3.98s",
        silent=_buckets(
            "drumline_scheduling_cycle_seconds",
            {"2": "0+10x40", "4": "0+10x40", "+Inf": "0+10x40"},
            phase="place",
        ),
    ),
    "DrumlineSchedulerFault": AlertCase(
        fires={'drumline_scheduling_faults_total{stage="repair"}': "_x60 1x60"},
        at_minutes=62,
        labels={"stage": "repair"},
        silent={'drumline_scheduling_faults_total{stage="repair"}': "1x120"},
    ),
    "DrumlineObjectUnreadable": AlertCase(
        fires={'drumline_poisoned_objects_total{resource="trainingjobs"}': "_x60 1x60"},
        at_minutes=62,
        labels={"resource": "trainingjobs"},
        silent={'drumline_poisoned_objects_total{resource="trainingjobs"}': "1x120"},
    ),
    "DrumlineSigningKeyMissing": AlertCase(
        fires={'drumline_gangs_by_signing_key{key="missing"}': "3x10"},
        at_minutes=6,
        value="3",
        silent={'drumline_gangs_by_signing_key{key="previous"}': "3x10"},
    ),
    "DrumlineJobsNeverStart": AlertCase(
        fires={'drumline_pending_jobs{queue="nlp",reason="ExceedsQuota"}': "2x20"},
        at_minutes=16,
        labels={"queue": "nlp", "reason": "ExceedsQuota"},
        value="2",
        silent={'drumline_pending_jobs{queue="nlp",reason="InsufficientGpus"}': "2x20"},
    ),
    "DrumlineCreatesRejected": AlertCase(
        fires={  # it is tried again after five minutes
            'drumline_pending_jobs{queue="nlp",reason="BackingOff"}': "2x4 0x2 2x15"
        },
        at_minutes=16,
        labels={"queue": "nlp"},
        value="2",
        silent={'drumline_pending_jobs{queue="nlp",reason="BackingOff"}': "0 0 2x8 0x12"},
    ),
    "DrumlineQueueDeletedInUse": AlertCase(
        fires={
            _of_job("drumline_job_gpus", instance="a"): "8x20",
            _of_job("drumline_job_gpus", instance="b", training_job="opt"): "16x20",
            'drumline_queue_gpus{queue="nlp",gpu_pool="h100",kind="nominal"}': "64x4 _x15",
        },
        at_minutes=19,
        labels={"queue": "nlp"},
        value="2",
        silent={
            _of_job("drumline_job_gpus"): "8x20",
            'drumline_queue_gpus{queue="nlp",gpu_pool="h100",kind="nominal"}': "0x20",
        },
    ),
    "DrumlinePoolDeletedInUse": AlertCase(
        fires={
            _of_job("drumline_job_info", gpu_pool="h100"): "1x20",
            _of_job("drumline_job_info", gpu_pool="", training_job="waits"): "1x20",
            'drumline_pool_gpus{gpu_pool="lab",kind="total"}': "8x20",
        },
        at_minutes=6,
        labels={"gpu_pool": "h100"},
        value="1",
        silent={
            _of_job("drumline_job_info", gpu_pool="h100"): "1x20",
            'drumline_pool_gpus{gpu_pool="h100",kind="total"}': "0x20",
        },
    ),
    "DrumlineQueueBudgetLow": AlertCase(
        fires={
            'drumline_queue_budget_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_spent_gpu_seconds{instance="a",queue="nlp"}': "85x20",
        },
        at_minutes=16,
        labels={"queue": "nlp"},
        value="85%",
        silent={
            'drumline_queue_budget_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_spent_gpu_seconds{instance="a",queue="nlp"}': "79x20",
            'drumline_queue_budget_spent_gpu_seconds{instance="a",queue="none"}': "900x20",
        },
    ),
    "DrumlineQueueBudgetSpent": AlertCase(
        fires={
            'drumline_queue_budget_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_credit_gpu_seconds{instance="a",queue="nlp"}': "20x20",
            'drumline_queue_budget_spent_gpu_seconds{instance="a",queue="nlp"}': "126x20",
        },
        at_minutes=1,
        labels={"queue": "nlp"},
        value="105%",
        silent={
            'drumline_queue_budget_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_credit_gpu_seconds{instance="a",queue="nlp"}': "20x20",
            'drumline_queue_budget_spent_gpu_seconds{instance="a",queue="nlp"}': "119x20",
        },
    ),
    "DrumlineQueueMoneyLow": AlertCase(
        fires={
            'drumline_queue_budget_cost{instance="a",queue="nlp"}': "500x20",
            'drumline_queue_budget_spent_cost{instance="a",queue="nlp"}': "400x20",
        },
        at_minutes=16,
        labels={"queue": "nlp"},
        value="80%",
        silent={
            'drumline_queue_budget_cost{instance="a",queue="nlp"}': "500x20",
            'drumline_queue_budget_spent_cost{instance="a",queue="nlp"}': "399x20",
        },
    ),
    "DrumlineQueueMoneySpent": AlertCase(
        fires={
            'drumline_queue_budget_cost{instance="a",queue="nlp"}': "500x20",
            'drumline_queue_budget_spent_cost{instance="a",queue="nlp"}': "500x20",
        },
        at_minutes=1,
        labels={"queue": "nlp"},
        value="100%",
        silent={
            'drumline_queue_budget_cost{instance="a",queue="nlp"}': "500x20",
            'drumline_queue_budget_spent_cost{instance="a",queue="nlp"}': "499x20",
        },
    ),
    "DrumlineUserBudgetLow": AlertCase(
        fires={
            'drumline_queue_budget_user_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_user_spent_gpu_seconds{instance="a",queue="nlp",user="ann"}': (
                "90x20"
            ),
            'drumline_queue_budget_user_spent_gpu_seconds{instance="a",queue="nlp",user="bob"}': (
                "10x20"
            ),
        },
        at_minutes=16,
        labels={"queue": "nlp", "user": "ann"},
        value="90%",
        silent={
            'drumline_queue_budget_user_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_user_spent_gpu_seconds{instance="a",queue="nlp",user="ann"}': (
                "79x20"
            ),
        },
    ),
    "DrumlineUserBudgetSpent": AlertCase(
        fires={
            'drumline_queue_budget_user_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_user_spent_gpu_seconds{instance="a",queue="nlp",user="ann"}': (
                "110x20"
            ),
        },
        at_minutes=1,
        labels={"queue": "nlp", "user": "ann"},
        value="110%",
        silent={
            'drumline_queue_budget_user_gpu_seconds{instance="a",queue="nlp"}': "100x20",
            'drumline_queue_budget_user_spent_gpu_seconds{instance="a",queue="nlp",user="ann"}': (
                "99x20"
            ),
        },
    ),
    "DrumlineGpusIdleWhileJobsWait": AlertCase(
        fires={
            'drumline_pending_jobs{queue="nlp",reason="TopologyTooNarrow"}': "2x100",
            'drumline_pending_jobs{queue="web",reason="TopologyTooNarrow"}': "1x100",
            'drumline_pool_gpus{gpu_pool="h100",kind="used"}': "60x100",
            'drumline_pool_gpus{gpu_pool="h100",kind="total"}': "100x100",
        },
        at_minutes=70,
        value="3",
        silent={
            'drumline_pending_jobs{queue="nlp",reason="TopologyTooNarrow"}': "2x100",
            'drumline_pending_jobs{queue="web",reason="TopologyTooNarrow"}': "1x100",
            'drumline_pool_gpus{gpu_pool="h100",kind="used"}': "60x100",
            'drumline_pool_gpus{gpu_pool="h100",kind="total"}': "100x100",
            "drumline_gangs_placed_total": "5x50 6x50",
        },
    ),
    "DrumlineStartsSlow": AlertCase(
        fires={
            **_buckets(
                "drumline_admission_to_running_seconds",
                {"600": "0x100", "1200": "0+1x100", "+Inf": "0+1x100"},
            ),
            "drumline_admission_to_running_seconds_count": "0+1x100",
        },
        at_minutes=90,
        value="19m 0s",
        silent={  # too few to say
            **_buckets(
                "drumline_admission_to_running_seconds",
                {"600": "0x100", "1200": "0x50 2x50", "+Inf": "0x50 2x50"},
            ),
            "drumline_admission_to_running_seconds_count": "0x50 2x50",
        },
    ),
    "DrumlineJobsFail": AlertCase(
        fires={
            'drumline_jobs_finished_total{outcome="Failed"}': "0+1x360",
            'drumline_jobs_finished_total{outcome="Succeeded"}': "0x360",
        },
        at_minutes=360,
        value="360",
        silent={
            'drumline_jobs_finished_total{outcome="Failed"}': "0+1x360",
            'drumline_jobs_finished_total{outcome="Succeeded"}': "0+1x360",
        },
    ),
    "DrumlinePreemptionsPileUp": AlertCase(
        fires={'drumline_preemptions_total{reason="LowerPriority"}': "0+1x60"},
        at_minutes=60,
        labels={"reason": "LowerPriority"},
        value="60",
        silent={
            f'drumline_preemptions_total{{reason="{reason}"}}': "0+1x60"
            for reason in ("Moved", "QueueDrained", "QuotaLowered", "BudgetSpent")
        },
    ),
    "DrumlineNodeBroken": AlertCase(
        fires={_disrupted(): "1x90"},
        at_minutes=61,
        labels={"node": "gpu-7", "kind": "Hardware"},
        silent={_disrupted(confidence="likely"): "1x90", _disrupted(kind="Cordoned"): "1x90"},
    ),
    "DrumlineJobOnBrokenNode": AlertCase(
        fires={_of_job("drumline_job_node", node="gpu-7"): "1x30", _disrupted(): "1x30"},
        at_minutes=16,
        labels={**_JOB, "node": "gpu-7", "kind": "Hardware"},
        silent={  # it leaves before
            _of_job("drumline_job_node", node="gpu-7"): "1x10 stale",
            _disrupted(): "1x30",
        },
    ),
    "DrumlineGpuFailsUnderJob": AlertCase(
        fires={
            _of_job("drumline_job_node", node="gpu-7"): "1x5",
            'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-7",gpu="2"}': "0 0 79x4",
            'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-7",gpu="3"}': "0 0 79x4",
        },
        at_minutes=3,
        labels={**_JOB, "node": "gpu-7"},
        value="79",
        silent={  # 31 is the program's own; nobody is on the other node
            _of_job("drumline_job_node", node="gpu-7"): "1x5",
            'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-7",gpu="2"}': "31x5",
            'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-8",gpu="2"}': "79x5",
        },
    ),
    "DrumlineGangPartial": AlertCase(
        fires={_of_job("drumline_gang_missing_members"): "2x10"},
        at_minutes=4,
        labels=_JOB,
        value="2",
        silent={_of_job("drumline_gang_missing_members"): "2 2 stale"},
    ),
    "DrumlineCapacityRequestFailing": AlertCase(
        fires={
            'drumline_node_requests_total{gpu_pool="h100",end="TimedOut"}': "0x30 1x30",
            'drumline_node_requests_total{gpu_pool="h100",end="Refused"}': "0x30 1x30",
            'drumline_node_requests_total{gpu_pool="h100",end="Started"}': "5x60",
        },
        at_minutes=50,
        labels={"gpu_pool": "h100"},
        value="2",
        silent={
            'drumline_node_requests_total{gpu_pool="h100",end="TimedOut"}': "0x30 2x30",
            'drumline_node_requests_total{gpu_pool="h100",end="Started"}': "5x40 6x20",
        },
    ),
    "DrumlineEtaUncalibrated": AlertCase(
        fires={
            'drumline_forecasts_total{start="late"}': "0+1x1500",
            'drumline_forecasts_total{start="band"}': "0+1x1500",
            'drumline_forecasts_total{start="unknown"}': "0+9x1500",
        },
        at_minutes=200,
        value="50%",
        silent={  # too few to say
            'drumline_forecasts_total{start="late"}': "0x100 10x1400",
            'drumline_forecasts_total{start="band"}': "0x1500",
        },
    ),
    "DrumlineNotificationsLate": AlertCase(
        fires={
            'drumline_notifier_oldest_message_seconds{channel="oncall",kind="slack"}': "0+60x40"
        },
        at_minutes=25,
        labels={"channel": "oncall", "kind": "slack"},
        value="25m 0s",
        silent={
            'drumline_notifier_oldest_message_seconds{channel="oncall",kind="slack"}': "0+60x18 0x9"
        },
    ),
    "DrumlineNotificationsDropped": AlertCase(
        fires={
            'drumline_notifier_messages_dropped_total{channel="oncall",kind="slack"}': "0x30 3x90"
        },
        at_minutes=60,
        labels={"channel": "oncall", "kind": "slack"},
        value="3",
        silent={'drumline_notifier_messages_dropped_total{channel="oncall",kind="slack"}': "3x90"},
    ),
    "DrumlineArchiveLate": AlertCase(
        fires={"drumline_archiver_overdue_seconds": "0+60x40"},
        at_minutes=25,
        value="25m 0s",
        silent={"drumline_archiver_overdue_seconds": "0+60x18 0x20"},
    ),
    "DrumlineNodesQuarantined": AlertCase(
        fires={'drumline_quarantined_nodes{gpu_pool="h100"}': "2x40"},
        at_minutes=31,
        labels={"gpu_pool": "h100"},
        value="2",
        silent={'drumline_quarantined_nodes{gpu_pool="h100"}': "2x20 0x20"},
    ),
    "DrumlineSpotStorm": AlertCase(
        fires={'drumline_node_disruptions{kind="SpotReclaim",confidence="certain"}': "5x5"},
        at_minutes=1,
        value="5",
        silent={'drumline_node_disruptions{kind="SpotReclaim",confidence="certain"}': "4x5"},
    ),
    "DrumlineRecoveriesPileUp": AlertCase(
        fires={'drumline_incidents_total{class="Hang"}': "0+1x60"},
        at_minutes=60,
        labels={"class": "Hang"},
        value="60",
        silent={'drumline_incidents_total{class="Hang"}': "0+1x15 15x45"},
    ),
    "DrumlineRecoverySlow": AlertCase(
        fires=_buckets(
            "drumline_incident_seconds",
            {"300": "0x400", "600": "0+1x400", "+Inf": "0+1x400"},
            phase="restored",
        ),
        at_minutes=370,
        labels={"phase": "restored"},
        value="9m 30s",
        silent=_buckets(
            "drumline_incident_seconds",
            {"300": "0+1x400", "600": "0+1x400", "+Inf": "0+1x400"},
            phase="restored",
        ),
    ),
    "DrumlineWorkRepeated": AlertCase(
        fires={
            'drumline_queue_gpu_seconds_total{queue="nlp",state="repeated"}': "0+10x400",
            'drumline_queue_gpu_seconds_total{queue="nlp",state="productive"}': "0+90x400",
        },
        at_minutes=370,
        labels={"queue": "nlp"},
        value="10%",
        silent={
            'drumline_queue_gpu_seconds_total{queue="nlp",state="repeated"}': "0+4x400",
            'drumline_queue_gpu_seconds_total{queue="nlp",state="productive"}': "0+96x400",
        },
    ),
    "DrumlineGoodputLow": AlertCase(
        fires={'drumline_queue_goodput_ratio{queue="nlp"}': "0.7x90"},
        at_minutes=61,
        labels={"queue": "nlp"},
        value="70%",
        silent={'drumline_queue_goodput_ratio{queue="nlp"}': "0.81x90"},
    ),
    "DrumlineJobStalled": AlertCase(
        fires={
            _of_job("drumline_trainer_step", rank="0"): "5x60",
            _of_job("drumline_trainer_total_steps", rank="0"): "100x60",
        },
        at_minutes=45,
        labels=_JOB,
        silent={  # one has made its last step, the other has begun 25 minutes ago
            _of_job("drumline_trainer_step", rank="0"): "100x60",
            _of_job("drumline_trainer_total_steps", rank="0"): "100x60",
            _of_job("drumline_trainer_step", training_job="new"): "_x20 0x40",
            _of_job("drumline_trainer_total_steps", training_job="new"): "_x20 100x40",
        },
    ),
    "DrumlineJobIdleGPUs": AlertCase(
        fires={_of_job("drumline_trainer_idle_seconds", pod="a"): "0x5 120+60x10"},
        at_minutes=12,
        labels=_JOB,
        value="8m 0s",
        silent={  # it has gone on
            _of_job("drumline_trainer_idle_seconds", pod="a"): "0x5 120 180 240 0x10",
        },
    ),
    "DrumlineCheckpointOverdue": AlertCase(
        fires={
            _of_job("drumline_trainer_checkpoint_step"): "10x800",
            _of_job("drumline_trainer_step"): "0+1x800",
        },
        at_minutes=400,
        labels=_JOB,
        silent={
            _of_job("drumline_trainer_checkpoint_step"): "10x200 210x600",
            _of_job("drumline_trainer_step"): "0+1x800",
        },
    ),
    "DrumlineRankDown": AlertCase(
        fires={
            _of_job("drumline_trainer_rank_up", rank="0"): "1x20",
            _of_job("drumline_trainer_rank_up", rank="1"): "0x20",
        },
        at_minutes=16,
        labels=_JOB,
        silent={_of_job("drumline_trainer_rank_up", rank="0"): "1 0x10 1x10"},
    ),
    "DrumlineStepsSlow": AlertCase(
        fires={
            _of_job("drumline_trainer_step_seconds"): "2x40",
            _of_job("drumline_trainer_predicted_step_seconds"): "1x40",
        },
        at_minutes=31,
        labels=_JOB,
        value="2",
        silent={
            _of_job("drumline_trainer_step_seconds"): "1.4x40",
            _of_job("drumline_trainer_predicted_step_seconds"): "1x40",
        },
    ),
    "DrumlineLossNotANumber": AlertCase(
        fires={_of_job("drumline_trainer_loss"): "2.3 NaN NaN NaN"},
        at_minutes=2,
        labels=_JOB,
        silent={_of_job("drumline_trainer_loss"): "2.3 2.2 2.1 2.0"},
    ),
}
