"""The operator's own process: who leads, how fast it decides, what fails."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.panels import Board, Panel, PanelRow, Query, quantile

_OURS: Final = "and on (instance) drumline_build_info"

OPERATOR: Final = Board(
    name="operator",
    title="Operator",
    description="Leadership, cycles, reconciles, requests, watches.",
    rows=(
        PanelRow(
            title="Leadership",
            panels=(
                Panel(
                    title="Who leads",
                    description="Exactly one process has 1.",
                    kind="state-timeline",
                    unit="none",
                    queries=(
                        Query(
                            expression="max by (pod, instance) (drumline_leader)", legend="{{pod}}"
                        ),
                    ),
                ),
                Panel(
                    title="Since a watch heard from the API server",
                    description="A minute is usual; above two the operator decides on old facts.",
                    unit="s",
                    queries=(
                        Query(
                            expression="max by (resource) (drumline_informer_freshness_seconds)",
                            legend="{{resource}}",
                        ),
                    ),
                ),
                Panel(
                    title="Versions",
                    description="Processes by version: two during a rolling update.",
                    queries=(
                        Query(
                            expression="count by (version) (drumline_build_info)",
                            legend="{{version}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Decisions",
            panels=(
                Panel(
                    title="A scheduling cycle, p99",
                    description="By phase.",
                    unit="s",
                    queries=(
                        Query(
                            expression=quantile(
                                0.99, "drumline_scheduling_cycle_seconds", by="phase"
                            ),
                            legend="{{phase}}",
                        ),
                    ),
                ),
                Panel(
                    title="Exceptions of the scheduler",
                    description="By stage, in an hour; cycle: no job is at fault.",
                    queries=(
                        Query(
                            expression="sum by (stage)"
                            " (increase(drumline_scheduling_faults_total[1h]))",
                            legend="{{stage}}",
                        ),
                    ),
                ),
                Panel(
                    title="A reconcile of a job",
                    description="Half are faster than the first line, one in a hundred slower than"
                    " the second.",
                    unit="s",
                    queries=(
                        Query(
                            expression=quantile(0.5, "drumline_reconcile_seconds", by=""),
                            legend="p50",
                        ),
                        Query(
                            expression=quantile(0.99, "drumline_reconcile_seconds", by=""),
                            legend="p99",
                        ),
                    ),
                ),
                Panel(
                    title="Reconciles that fail",
                    description="By kind of error; each is tried again.",
                    unit="reqps",
                    queries=(
                        Query(
                            expression="sum by (kind)"
                            " (rate(drumline_reconcile_errors_total[$__rate_interval]))",
                            legend="{{kind}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="API server",
            panels=(
                Panel(
                    title="Requests by answer",
                    description="0 is no answer, 429 fairness, 409 a write that came late.",
                    unit="reqps",
                    queries=(
                        Query(
                            expression="sum by (code)"
                            " (rate(drumline_api_requests_total[$__rate_interval]))",
                            legend="{{code}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests by what they do",
                    description="By verb and resource.",
                    unit="reqps",
                    queries=(
                        Query(
                            expression="topk(10, sum by (verb, resource)"
                            " (rate(drumline_api_requests_total[$__rate_interval])))",
                            legend="{{verb}} {{resource}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time of a request, p99",
                    description="By verb.",
                    unit="s",
                    queries=(
                        Query(
                            expression=quantile(0.99, "drumline_api_request_seconds", by="verb"),
                            legend="{{verb}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Notifier and archiver",
            panels=(
                Panel(
                    title="Messages",
                    description="In an hour, by channel. Dropped is lost for good; failed is mostly"
                    " tried again.",
                    queries=tuple(
                        Query(
                            expression="sum by (channel)"
                            f" (increase(drumline_notifier_{metric}_total[1h]))",
                            legend="{{channel}} " + word,
                        )
                        for metric, word in (
                            ("messages_sent", "sent"),
                            ("attempts_failed", "failed"),
                            ("messages_dropped", "dropped"),
                        )
                    ),
                ),
                Panel(
                    title="Messages that wait",
                    description="By channel. Six hours after its change a message is given up.",
                    queries=(
                        Query(
                            expression="max by (channel) (drumline_notifier_pending_messages)",
                            legend="{{channel}}",
                        ),
                    ),
                ),
                Panel(
                    title="Late by",
                    description="The oldest message of a channel, and the oldest change of a job"
                    " that the archive lacks.",
                    unit="s",
                    queries=(
                        Query(
                            expression="max by (channel)"
                            " (drumline_notifier_oldest_message_seconds)",
                            legend="{{channel}}",
                        ),
                        Query(
                            expression="max(drumline_archiver_overdue_seconds)", legend="archive"
                        ),
                    ),
                ),
                Panel(
                    title="Archive",
                    description="Documents written in an hour, and jobs that wait for it.",
                    queries=(
                        Query(
                            expression="sum by (kind)"
                            " (increase(drumline_archiver_documents_written_total[1h]))",
                            legend="{{kind}}",
                        ),
                        Query(expression="max(drumline_archiver_due_jobs)", legend="due"),
                    ),
                ),
                Panel(
                    title="Refused writes",
                    description="In an hour: by the archive's storage, and of the notifier's"
                    " record.",
                    queries=(
                        Query(
                            expression="sum(increase(drumline_archiver_failures_total[1h]))",
                            legend="archive",
                        ),
                        Query(
                            expression="sum(increase(drumline_notifier_record_failures_total[1h]))",
                            legend="record of the notifier",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Process",
            panels=(
                Panel(
                    title="Memory",
                    description="Resident, by process.",
                    unit="bytes",
                    queries=(
                        Query(
                            expression=f"process_resident_memory_bytes {_OURS}", legend="{{pod}}"
                        ),
                    ),
                ),
                Panel(
                    title="Processors",
                    description="Used, by process.",
                    queries=(
                        Query(
                            expression=f"rate(process_cpu_seconds_total[$__rate_interval]) {_OURS}",
                            legend="{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="Objects left out, and gangs without their key",
                    description="None should ever be above 0: docs/runbooks.md; a namespace that"
                    " may not be read was deleted, or its Role was.",
                    queries=(
                        Query(
                            expression="sum by (resource) (drumline_poisoned_objects_total)",
                            legend="unreadable {{resource}}",
                        ),
                        Query(
                            expression="max by (key)"
                            ' (drumline_gangs_by_signing_key{key!="current"})',
                            legend="{{key}} signing key",
                        ),
                        Query(
                            expression="max by (namespace) (drumline_namespace_unreadable)",
                            legend="may not read {{namespace}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
