"""All metrics of the operator, declared in one place. Units are in the names.

Each process has one instance, which is passed to the components that count. There is no
module-level registry. Labels are bounded: queues, pools, reasons, verbs and kinds, never jobs or
pods. `cluster_series` has bounded series of single jobs and nodes.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from drumline import __version__
from drumline.telemetry.cluster_series import ClusterSeriesCollector
from drumline.telemetry.registry import process_registry
from drumline_api.conditions import Phase
from drumline_contract import FaultClass, RestoreTier
from drumline_scheduler.decisions import QueueEvictionReason, VictimReason

# Most requests and cycles take milliseconds, so the buckets are dense there.
_FAST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Dense below a second, where in-place recoveries are, and up to a quarter of an hour.
_INCIDENT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10, 30, 60, 120, 300, 900)
# Ratios: 1.0 means that the forecast was wrong by the whole wait.
_ERROR_RATIOS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 100.0)
# From an idle cluster, where a job starts within a second, to a day in a queue.
_WAIT_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)


class ApiMetrics:
    """Requests to the Kubernetes API server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "drumline_api_requests_total",
            "Requests to the Kubernetes API server.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "drumline_api_request_seconds",
            "Duration of requests to the Kubernetes API server.",
            # No resource label: each label value adds about 15 series to a histogram.
            ["verb"],
            buckets=_FAST_SECONDS,
            registry=registry,
        )


class SchedulingMetrics:
    """The scheduling cycle, the queues and the pools."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cycle_seconds = Histogram(
            "drumline_scheduling_cycle_seconds",
            "Duration of a scheduling cycle, by phase.",
            ["phase"],
            buckets=_FAST_SECONDS,
            registry=registry,
        )
        self.gangs_placed = Counter(
            "drumline_gangs_placed_total",
            "Gangs that were placed.",
            ["queue", "gpu_pool"],
            registry=registry,
        )
        self.queue_wait_seconds = Histogram(
            "drumline_queue_wait_seconds",
            "Time from queuing of a job to its admission.",
            ["queue"],
            buckets=_WAIT_SECONDS,
            registry=registry,
        )
        self.start_seconds = Histogram(
            "drumline_admission_to_running_seconds",
            "Time from admission until all members of the gang run.",
            buckets=_WAIT_SECONDS,
            registry=registry,
        )
        self.pending_jobs = Gauge(
            "drumline_pending_jobs",
            "Pending jobs, by queue and reason.",
            # Reasons come from a closed list, so the number of series is bounded.
            ["queue", "reason"],
            registry=registry,
        )
        self.queue_gpus = Gauge(
            "drumline_queue_gpus",
            "GPUs of a queue in a pool: nominal quota and usage.",
            # `kind` instead of two metrics, so that a quota and its use can be drawn in one query.
            ["queue", "gpu_pool", "kind"],
            registry=registry,
        )
        self.pool_gpus = Gauge(
            "drumline_pool_gpus",
            "GPUs of a pool: total and used.",
            ["gpu_pool", "kind"],
            registry=registry,
        )
        self.pool_step_time = Gauge(
            "drumline_pool_step_time_ratio",
            "Step time of a pool's running jobs divided by the planner's prediction, median.",
            ["gpu_pool"],
            registry=registry,
        )
        self.pool_step_part = Gauge(
            "drumline_pool_step_part_ratio",
            "Measured time of a part of a step divided by the planner's prediction, from the"
            " pool's status.",
            ["gpu_pool", "part"],
            registry=registry,
        )


class FaultMetrics:
    """Exceptions of the scheduler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.raised = Counter(
            "drumline_scheduling_faults_total",
            "Exceptions in a scheduling cycle, by stage. The stage cycle is not caused by a job.",
            # A stage, not a job: a poisonous job must not create series.
            ["stage"],
            registry=registry,
        )


class AutoscalingMetrics:
    """Demands for nodes of autoscalers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.node_requests = Counter(
            "drumline_node_requests_total",
            "Finished requests for new nodes, by pool and result.",
            ["gpu_pool", "end"],
            registry=registry,
        )


class BudgetMetrics:
    """The budgets of the queues."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Seconds, not hours: the base unit of Prometheus.
        self.gpu_seconds = Gauge(
            "drumline_queue_budget_gpu_seconds",
            "GPU-seconds that the jobs of a queue may use in its budget's window.",
            ["queue"],
            registry=registry,
        )
        self.spent_gpu_seconds = Gauge(
            "drumline_queue_budget_spent_gpu_seconds",
            "GPU-seconds that a queue with a budget used in its window.",
            ["queue"],
            registry=registry,
        )
        self.credit_gpu_seconds = Gauge(
            "drumline_queue_budget_credit_gpu_seconds",
            "GPU-seconds of the next refill that the jobs of a queue may use early.",
            ["queue"],
            registry=registry,
        )
        self.cost = Gauge(
            "drumline_queue_budget_cost",
            "Maximum cost of a queue's jobs in its budget's window, in the prices' currency.",
            ["queue"],
            registry=registry,
        )
        self.spent_cost = Gauge(
            "drumline_queue_budget_spent_cost",
            "Cost of the jobs of a queue with a cost budget in its window.",
            ["queue"],
            registry=registry,
        )
        self.user_gpu_seconds = Gauge(
            "drumline_queue_budget_user_gpu_seconds",
            "GPU-seconds that the jobs of each user of a queue may use in its budget's window.",
            ["queue"],
            registry=registry,
        )
        self.user_spent_gpu_seconds = Gauge(
            "drumline_queue_budget_user_spent_gpu_seconds",
            "GPU-seconds that a user's jobs used in the window, for the users with the highest"
            " usage.",
            # Users are bounded by the status, which lists only the highest.
            ["queue", "user"],
            registry=registry,
        )

    def clear(self) -> None:
        """Forget all queues."""
        # Cleared before each report, so a deleted queue or budget leaves no series behind.
        for gauge in (
            *(self.gpu_seconds, self.spent_gpu_seconds, self.credit_gpu_seconds),
            *(self.cost, self.spent_cost),
            *(self.user_gpu_seconds, self.user_spent_gpu_seconds),
        ):
            gauge.clear()


class ForecastMetrics:
    """Accuracy of the first forecast of each job's start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.error = Histogram(
            "drumline_forecast_error_ratio",
            "Error of the first start forecast, as a fraction of the wait from that forecast on.",
            buckets=_ERROR_RATIOS,
            registry=registry,
        )
        self.starts = Counter(
            "drumline_forecasts_total",
            "First forecasts of started jobs: start before p50, up to p90 (band), later, no band.",
            ["start"],
            registry=registry,
        )
        for start in ("early", "band", "late"):  # from 0 on: an increase needs the sample before
            self.starts.labels(start=start)


class JobMetrics:
    """Outcomes of admitted jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.finished = Counter(
            "drumline_jobs_finished_total",
            "Jobs that ended, by outcome.",
            ["outcome"],
            registry=registry,
        )
        for outcome in (Phase.SUCCEEDED, Phase.FAILED):  # from 0 on, as above
            self.finished.labels(outcome=str(outcome))
        self.restarts = Counter(
            "drumline_job_restarts_total",
            "New generations after a failure, by reason.",
            ["reason"],
            registry=registry,
        )
        self.members_replaced = Counter(
            "drumline_members_replaced_total",
            "Lost members that were replaced while the other members kept their nodes.",
            registry=registry,
        )
        self.gangs_resized = Counter(
            "drumline_gangs_resized_total",
            "Elastic gangs that continued with another number of members.",
            ["direction"],
            registry=registry,
        )
        self.preemptions = Counter(
            "drumline_preemptions_total",
            "Gangs that were evicted for another gang or by their own queue, by reason.",
            ["reason"],
            registry=registry,
        )
        for reason in (*VictimReason, *QueueEvictionReason):  # many can leave at once
            self.preemptions.labels(reason=str(reason))
        self.moves = Counter(
            "drumline_moves_total",
            "Gangs that were moved without a pending gang that needs their nodes, by reason.",
            ["reason"],
            registry=registry,
        )


class RecoveryMetrics:
    """Faults, what recovering from them took, and what the GPUs were held for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.incidents = Counter(
            "drumline_incidents_total",
            "Finished recoveries, by class of fault and source of the state.",
            ["class", "tier"],
            registry=registry,
        )
        for fault_class in FaultClass:
            for tier in ("", *RestoreTier):
                self.incidents.labels(str(fault_class), str(tier))
        self.incident_seconds = Histogram(
            "drumline_incident_seconds",
            "Duration of one phase of a recovery. The phases follow each other without a gap.",
            ["phase", "class"],
            buckets=_INCIDENT_SECONDS,
            registry=registry,
        )
        self.steps_lost = Counter(
            "drumline_incident_steps_lost_total",
            "Steps that were repeated because of a fault.",
            ["class"],
            registry=registry,
        )
        self.gpu_seconds = Counter(
            "drumline_queue_gpu_seconds_total",
            "GPU-seconds that the jobs of a queue held, by use.",
            # The states of a job's time add up to all GPU-seconds that it held.
            ["queue", "state"],
            registry=registry,
        )
        self.goodput = Gauge(
            "drumline_queue_goodput_ratio",
            "Share of the GPU-seconds of a queue's jobs that made lasting training progress.",
            # Productive GPU-seconds divided by all held GPU-seconds.
            ["queue"],
            registry=registry,
        )
        self.node_disruptions = Gauge(
            "drumline_node_disruptions",
            "Nodes with an announced disruption.",
            ["kind", "confidence"],
            registry=registry,
        )
        self.quarantined_nodes = Gauge(
            "drumline_quarantined_nodes",
            "Nodes of a pool that take no new pods because of evidence from jobs or checks.",
            ["gpu_pool"],
            registry=registry,
        )


class ControllerMetrics:
    """The operator's own process: reconciles, watches, leadership."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconcile_seconds = Histogram(
            "drumline_reconcile_seconds",
            "Duration of one reconcile of one job.",
            buckets=_FAST_SECONDS,
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "drumline_reconcile_errors_total",
            "Reconciles that failed and are retried, by kind of error.",
            ["kind"],
            registry=registry,
        )
        # Above 70 s a stream is broken, because bookmarks arrive every minute.
        self.informer_freshness_seconds = Gauge(
            "drumline_informer_freshness_seconds",
            "Time since a watch last received data from the API server.",
            ["resource"],
            registry=registry,
        )
        self.poisoned_objects = Counter(
            "drumline_poisoned_objects_total",
            "Objects that could not be decoded and were skipped.",
            ["resource"],
            registry=registry,
        )
        self.namespace_unreadable = Gauge(
            "drumline_namespace_unreadable",
            "1 while the operator may not read the jobs of a watched namespace.",
            ["namespace"],
            registry=registry,
        )
        # Shows when the last gang with an old key has ended, and the key can be removed.
        self.gangs_by_signing_key = Gauge(
            "drumline_gangs_by_signing_key",
            "Gangs with agents that hold GPUs, by the signing key of their token.",
            ["key"],
            registry=registry,
        )
        self.leader = Gauge("drumline_leader", "1 while this process leads.", registry=registry)
        version = Gauge(
            "drumline_build_info", "The running version.", ["version"], registry=registry
        )
        # The value is always 1. The label joins the version to other series.
        version.labels(version=__version__).set(1)


class Metrics:
    """Counters, gauges and histograms of one operator process, by subject."""

    def __init__(self) -> None:
        # Its own registry: tests and several processes in one interpreter do not share counters.
        self.registry = registry = process_registry()
        self.api = ApiMetrics(registry)
        self.scheduling = SchedulingMetrics(registry)
        self.faults = FaultMetrics(registry)
        self.autoscaling = AutoscalingMetrics(registry)
        self.budgets = BudgetMetrics(registry)
        self.forecasts = ForecastMetrics(registry)
        self.jobs = JobMetrics(registry)
        self.recovery = RecoveryMetrics(registry)
        self.controller = ControllerMetrics(registry)
        self.cluster = ClusterSeriesCollector()
        registry.register(self.cluster)

    def observe_request(self, *, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request to the API server (`kube.client.Observe`).

        Args:
            verb: HTTP method.
            resource: plural name of the kind.
            code: HTTP status code. 0: no answer.
            seconds: duration.
        """
        # The code 0 stands for no answer, so timeouts are visible as requests.
        self.api.requests.labels(verb=str(verb), resource=resource, code=str(code)).inc()
        self.api.request_seconds.labels(verb=str(verb)).observe(seconds)

    def render(self) -> bytes:
        """Return the exposition text of all metrics."""
        return generate_latest(self.registry)
