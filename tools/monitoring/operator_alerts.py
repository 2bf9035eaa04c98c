"""Define alerts about the operator's own process."""

from __future__ import annotations

from typing import Final

from tools.monitoring.model import Alert, AlertGroup

_LOG: Final = (
    "kubectl logs -n drumline-system deploy/drumline-operator --all-pods --prefix --tail=50"
)
_NOTIFIER_LOG: Final = "kubectl logs -n drumline-system deploy/drumline-notifier --tail=50"
REPORTING: Final = AlertGroup(
    name="drumline-reporting",
    alerts=(
        Alert(
            name="DrumlineNotificationsLate",
            expression="max by (channel, kind) (drumline_notifier_oldest_message_seconds) > 900",
            minutes=5,
            severity="warning",
            summary="A message of channel {{ $labels.channel }} ({{ $labels.kind }}) has waited"
            " for {{ $value | humanizeDuration }}.",
            command=_NOTIFIER_LOG,
        ),
        Alert(
            name="DrumlineNotificationsDropped",
            expression="sum by (channel, kind)"
            " (increase(drumline_notifier_messages_dropped_total[1h])) > 0",
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} messages of channel {{ $labels.channel }} ({{"
            " $labels.kind }}) were dropped within an hour.",
            command=_NOTIFIER_LOG,
        ),
        Alert(
            name="DrumlineArchiveLate",
            expression="max(drumline_archiver_overdue_seconds) > 900",
            minutes=5,
            severity="warning",
            summary="Changes of jobs have been missing from the archive for {{ $value |"
            " humanizeDuration }}.",
            command="kubectl logs -n drumline-system deploy/drumline-archiver --tail=50",
        ),
    ),
)


def _errors(window: str) -> str:
    """Return the share of reconciles that fail."""
    return (
        f"sum(rate(drumline_reconcile_errors_total[{window}]))"
        f" / sum(rate(drumline_reconcile_seconds_count[{window}]))"
    )


def _burn(rate: float, *, long: str, short: str) -> str:
    """The budget of 1 % of failing reconciles is used up at this multiple of its rate.

    The short window ends the alert soon after the fault has ended (multi-window, multi-burn-rate:
    https://sre.google/workbook/alerting-on-slos).
    """
    return f"({_errors(long)}) > {rate} * 0.01 and ({_errors(short)}) > {rate} * 0.01"


OPERATOR: Final = AlertGroup(
    name="drumline-operator",
    alerts=(
        Alert(
            name="DrumlineNoLeader",
            # Each installation has a leader of its own.
            expression="sum by (namespace) (drumline_leader) == 0 or"
            ' label_replace(absent(drumline_leader), "namespace", "drumline-system", "", "")',
            minutes=2,
            severity="critical",
            summary="No process of the operator in namespace {{ $labels.namespace }} leads. No job"
            " is placed and no lost pod is replaced. Running jobs continue.",
            command="kubectl get lease,pods -n {{ $labels.namespace }}",
        ),
        Alert(
            name="DrumlineTwoLeaders",
            # Two jobs of Prometheus may scrape the same process.
            expression="sum by (namespace) (max by (namespace, instance) (drumline_leader)) > 1",
            minutes=2,
            severity="critical",
            summary="{{ $value }} processes in namespace {{ $labels.namespace }} report that they"
            " lead. Only the holder of the Lease can write.",
            command="kubectl get lease -n {{ $labels.namespace }} drumline-operator -o yaml",
        ),
        Alert(
            name="DrumlineOperatorRestarts",
            expression="changes(process_start_time_seconds[1h]) > 3 and on (instance)"
            " drumline_build_info",
            minutes=0,
            severity="warning",
            summary="The operator at {{ $labels.instance }} started {{ $value }} times within an"
            " hour.",
            command="kubectl logs -n drumline-system deploy/drumline-operator --previous --tail=50",
        ),
        Alert(
            name="DrumlineWatchStale",
            # a quiet watch is heard of each minute, or is opened again after 70 s more; after 180 s
            # the liveness probe fails
            expression="max by (instance, resource) (drumline_informer_freshness_seconds) > 120",
            minutes=1,
            severity="warning",
            summary="The operator at {{ $labels.instance }} has received no events about {{"
            " $labels.resource }} for {{ $value | humanizeDuration }}.",
            command=_LOG,
        ),
        Alert(
            name="DrumlineReconcileErrorsFast",
            expression=_burn(14.4, long="1h", short="5m"),
            minutes=2,
            severity="critical",
            summary="{{ $value | humanizePercentage }} of the reconciles fail.",
            command=_LOG,
        ),
        Alert(
            name="DrumlineReconcileErrorsSlow",
            expression=_burn(6, long="6h", short="30m"),
            minutes=15,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the reconciles fail.",
            command=_LOG,
        ),
        Alert(
            name="DrumlineApiRequestsFail",
            expression='sum(rate(drumline_api_requests_total{code=~"0|5..|429"}[10m]))'
            " / sum(rate(drumline_api_requests_total[10m])) > 0.05",
            minutes=10,
            severity="warning",
            summary="The API server does not answer {{ $value | humanizePercentage }} of the"
            " operator's requests, or rejects them because of load.",
            command="kubectl get --raw '/readyz?verbose'",
        ),
        Alert(
            name="DrumlineCyclesSlow",
            expression="histogram_quantile(0.99, sum by (le, phase)"
            " (rate(drumline_scheduling_cycle_seconds_bucket[10m]))) > 2",
            minutes=15,
            severity="warning",
            summary="The slowest 1 % of scheduling cycles take {{ $value | humanizeDuration }}"
            " in phase {{ $labels.phase }}.",
            command="kubectl top pod -n drumline-system",
        ),
        Alert(
            name="DrumlineSchedulerFault",
            # a counter that appears with its first exception has not increased yet
            expression="sum by (stage) (drumline_scheduling_faults_total"
            " unless drumline_scheduling_faults_total offset 15m) > 0"
            " or sum by (stage) (increase(drumline_scheduling_faults_total[15m])) > 0",
            minutes=0,
            severity="warning",
            summary="The scheduler raises exceptions in stage {{ $labels.stage }}.",
            command=f"{_LOG.replace('50', '5000')} | grep -E 'scheduler_fault|cycle_.*failed'",
        ),
        Alert(
            name="DrumlineObjectUnreadable",
            # a counter that appears with its first object has not increased yet
            expression="sum by (resource) (drumline_poisoned_objects_total"
            " unless drumline_poisoned_objects_total offset 1h) > 0"
            " or sum by (resource) (increase(drumline_poisoned_objects_total[1h])) > 0",
            minutes=0,
            severity="warning",
            summary="Objects of {{ $labels.resource }} cannot be decoded and are skipped.",
            command=f"{_LOG.replace('50', '5000')} | grep object_",
        ),
        Alert(
            name="DrumlineSigningKeyMissing",
            expression='max(drumline_gangs_by_signing_key{key="missing"}) > 0',
            minutes=5,
            severity="critical",
            summary="{{ $value }} gangs were admitted with a signing key that the operator no"
            " longer has. It cannot reach their agents.",
            command="kubectl describe secret -n drumline-system drumline-signing-key",
        ),
    ),
)
