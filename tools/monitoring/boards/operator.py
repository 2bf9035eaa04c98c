"""The operator's own process: who leads, how fast it decides, what fails."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import Board, Query, panel, quantile, row

_OURS: Final = "and on (instance) drumline_build_info"

OPERATOR: Final = Board(
    name="operator",
    title="Operator",
    description="Leadership, cycles, reconciles, requests, watches.",
    rows=(
        row(
            "Leadership",
            panel(
                "Who leads",
                "Exactly one process has 1.",
                Query("max by (pod, instance) (drumline_leader)", "{{pod}}"),
                kind="state-timeline",
                unit="none",
            ),
            panel(
                "Since a watch heard from the API server",
                "A minute is usual; above two the operator decides on old facts.",
                Query("max by (resource) (drumline_informer_freshness_seconds)", "{{resource}}"),
                unit="s",
            ),
            panel(
                "Versions",
                "Processes by version: two during a rolling update.",
                Query("count by (version) (drumline_build_info)", "{{version}}"),
            ),
        ),
        row(
            "Decisions",
            panel(
                "A scheduling cycle, p99",
                "By phase.",
                Query(quantile(0.99, "drumline_scheduling_cycle_seconds", by="phase"), "{{phase}}"),
                unit="s",
            ),
            panel(
                "Exceptions of the scheduler",
                "By stage, in an hour; cycle: no job is at fault.",
                Query(
                    "sum by (stage) (increase(drumline_scheduling_faults_total[1h]))", "{{stage}}"
                ),
            ),
            panel(
                "A reconcile of a job",
                "Half are faster than the first line, one in a hundred slower than the second.",
                Query(quantile(0.5, "drumline_reconcile_seconds", by=""), "p50"),
                Query(quantile(0.99, "drumline_reconcile_seconds", by=""), "p99"),
                unit="s",
            ),
            panel(
                "Reconciles that fail",
                "By kind of error; each is tried again.",
                Query(
                    "sum by (kind) (rate(drumline_reconcile_errors_total[$__rate_interval]))",
                    "{{kind}}",
                ),
                unit="reqps",
            ),
        ),
        row(
            "API server",
            panel(
                "Requests by answer",
                "0 is no answer, 429 fairness, 409 a write that came late.",
                Query(
                    "sum by (code) (rate(drumline_api_requests_total[$__rate_interval]))",
                    "{{code}}",
                ),
                unit="reqps",
            ),
            panel(
                "Requests by what they do",
                "By verb and resource.",
                Query(
                    (
                        "topk(10, sum by (verb, resource)"
                        " (rate(drumline_api_requests_total[$__rate_interval])))"
                    ),
                    "{{verb}} {{resource}}",
                ),
                unit="reqps",
            ),
            panel(
                "Time of a request, p99",
                "By verb.",
                Query(quantile(0.99, "drumline_api_request_seconds", by="verb"), "{{verb}}"),
                unit="s",
            ),
        ),
        row(
            "Notifier and archiver",
            panel(
                "Messages",
                "In an hour, by channel. Dropped is lost for good; failed is mostly tried again.",
                *tuple(
                    Query(
                        f"sum by (channel) (increase(drumline_notifier_{metric}_total[1h]))",
                        "{{channel}} " + word,
                    )
                    for metric, word in (
                        ("messages_sent", "sent"),
                        ("attempts_failed", "failed"),
                        ("messages_dropped", "dropped"),
                    )
                ),
            ),
            panel(
                "Messages that wait",
                "By channel. Six hours after its change a message is given up.",
                Query("max by (channel) (drumline_notifier_pending_messages)", "{{channel}}"),
            ),
            panel(
                "Late by",
                (
                    "The oldest message of a channel, and the oldest change of a job"
                    " that the archive lacks."
                ),
                Query("max by (channel) (drumline_notifier_oldest_message_seconds)", "{{channel}}"),
                Query("max(drumline_archiver_overdue_seconds)", "archive"),
                unit="s",
            ),
            panel(
                "Archive",
                "Documents written in an hour, and jobs that wait for it.",
                Query(
                    "sum by (kind) (increase(drumline_archiver_documents_written_total[1h]))",
                    "{{kind}}",
                ),
                Query("max(drumline_archiver_due_jobs)", "due"),
            ),
            panel(
                "Refused writes",
                "In an hour: by the archive's storage, and of the notifier's record.",
                Query("sum(increase(drumline_archiver_failures_total[1h]))", "archive"),
                Query(
                    "sum(increase(drumline_notifier_record_failures_total[1h]))",
                    "record of the notifier",
                ),
            ),
        ),
        row(
            "Process",
            panel(
                "Memory",
                "Resident, by process.",
                Query(f"process_resident_memory_bytes {_OURS}", "{{pod}}"),
                unit="bytes",
            ),
            panel(
                "Processors",
                "Used, by process.",
                Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {_OURS}", "{{pod}}"),
            ),
            panel(
                "Objects left out, and gangs without their key",
                (
                    "None should ever be above 0: docs/runbooks.md; a namespace that"
                    " may not be read was deleted, or its Role was."
                ),
                Query(
                    "sum by (resource) (drumline_poisoned_objects_total)", "unreadable {{resource}}"
                ),
                Query(
                    'max by (key) (drumline_gangs_by_signing_key{key!="current"})',
                    "{{key}} signing key",
                ),
                Query(
                    "max by (namespace) (drumline_namespace_unreadable)",
                    "may not read {{namespace}}",
                ),
            ),
        ),
    ),
)
