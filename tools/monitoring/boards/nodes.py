"""Nodes and GPUs: what announces its end, what recoveries cost, what the GPUs do by job.

The figures of the GPUs are dcgm-exporter's. Its series have the pod that holds a GPU as `namespace`
and `pod` where its monitor has `honorLabels: true`, as its own chart sets; a join with the agents'
metrics adds job and queue.
"""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import Board, Panel, Query, Unit, Variable, panel, quantile, row

_TRAINING: Final = (
    "on (namespace, pod) group_left (training_job, queue)"
    ' (max by (namespace, pod, training_job, queue) (drumline_trainer_generation{queue=~"$queue"})'
    " * 0 + 1)"
)


def _of_jobs(title: str, metric: str, description: str, unit: Unit, scale: str = "") -> Panel:
    return panel(
        title,
        description,
        Query(
            f"avg by (namespace, training_job) ({metric}{scale} * {_TRAINING})",
            "{{namespace}}/{{training_job}}",
        ),
        unit=unit,
    )


def _worst(title: str, expression: str, description: str, unit: Unit = "short") -> Panel:
    return panel(title, description, Query(expression, "{{Hostname}} GPU {{gpu}}"), unit=unit)


NODES: Final = Board(
    name="nodes",
    title="Nodes and GPUs",
    description="Health of nodes and GPUs, and what it costs jobs.",
    variables=(Variable(name="queue", metric="drumline_trainer_generation", label="queue"),),
    rows=(
        row(
            "Nodes",
            panel(
                "Announced ends of nodes",
                "By what announces them and how certain it is.",
                Query(
                    "max by (kind, confidence) (drumline_node_disruptions)",
                    "{{kind}} ({{confidence}})",
                ),
                stacked=True,
            ),
            panel(
                "Quarantined nodes",
                "Take no new pods for what jobs or checks say of them.",
                Query("max by (gpu_pool) (drumline_quarantined_nodes)", "{{gpu_pool}}"),
            ),
            panel(
                "Recoveries",
                "In the interval, by class of fault and where the state came from.",
                Query(
                    "sum by (class, tier) (increase(drumline_incidents_total[$__rate_interval]))",
                    "{{class}} {{tier}}",
                ),
                Query(
                    "sum(increase(drumline_members_replaced_total[$__rate_interval]))",
                    "members replaced",
                ),
            ),
            panel(
                "A phase of a recovery, p90",
                "decide: a free place; replace: images; restore: storage.",
                Query(quantile(0.9, "drumline_incident_seconds", by="phase"), "{{phase}}"),
                unit="s",
            ),
        ),
        row(
            "Jobs on nodes",
            panel(
                "Jobs on nodes that will go or are broken",
                "With the node and what it announces. Needs networkPolicy.metricsFrom.",
                Query(
                    (
                        "max by (namespace, training_job, queue, node)"
                        ' (drumline_job_node{queue=~"$queue"}) * on (node) group_left (kind)'
                        " max by (node, kind) (drumline_node_disrupted)"
                    ),
                    "{{namespace}}/{{training_job}} on {{node}}: {{kind}}",
                ),
                kind="state-timeline",
                unit="none",
            ),
            panel(
                "Nodes by domain",
                "How many of each topology domain belong to a pool.",
                Query(
                    (
                        "count by (gpu_pool, domain)"
                        " (max by (node, gpu_pool, domain) (drumline_node_info))"
                    ),
                    "{{gpu_pool}} {{domain}}",
                ),
            ),
            panel(
                "Gangs that are not whole, and jobs without series",
                (
                    "The first should never be above 0; the second says that there are"
                    " more jobs than metrics.jobs, or that networkPolicy.metricsFrom names nobody."
                ),
                Query(
                    "max by (namespace, training_job) (drumline_gang_missing_members)",
                    "{{namespace}}/{{training_job}} lacks members",
                ),
                Query("max(drumline_job_series_left_out)", "jobs without series"),
            ),
        ),
        row(
            "What faults cost",
            panel(
                "Steps done twice",
                "In the interval, by class of fault.",
                Query(
                    (
                        "sum by (class)"
                        " (increase(drumline_incident_steps_lost_total[$__rate_interval]))"
                    ),
                    "{{class}}",
                ),
            ),
            panel(
                "Restarts of jobs and changes of size",
                "New generations after a failure, by reason; elastic gangs that shrank or grew.",
                Query(
                    "sum by (reason) (increase(drumline_job_restarts_total[$__rate_interval]))",
                    "{{reason}}",
                ),
                Query(
                    (
                        "sum by (direction)"
                        " (increase(drumline_gangs_resized_total[$__rate_interval]))"
                    ),
                    "{{direction}}",
                ),
            ),
            panel(
                "Measured over predicted step time",
                (
                    "Median of a pool's jobs, and by part of a step: a pool that drifts"
                    " up has slow nodes or a slow network."
                ),
                Query("max by (gpu_pool) (drumline_pool_step_time_ratio)", "{{gpu_pool}}"),
                Query(
                    "max by (gpu_pool, part) (drumline_pool_step_part_ratio)",
                    "{{gpu_pool}} {{part}}",
                ),
            ),
        ),
        row(
            "GPUs of training jobs (dcgm-exporter)",
            _of_jobs(
                "Utilization",
                "DCGM_FI_DEV_GPU_UTIL",
                "Some kernel runs: 100 % is not efficient by itself.",
                "percentunit",
                " / 100",
            ),
            _of_jobs(
                "Tensor cores",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                "Share of cycles; close to the model FLOP utilization.",
                "percentunit",
            ),
            _of_jobs("Power", "DCGM_FI_DEV_POWER_USAGE", "Mean of a job's GPUs.", "watt"),
        ),
        row(
            "Health of GPUs (dcgm-exporter)",
            _worst(
                "Hottest GPUs",
                "topk(10, max by (Hostname, gpu) (DCGM_FI_DEV_GPU_TEMP))",
                "Above some 85 degrees a GPU slows itself down.",
                "celsius",
            ),
            _worst(
                "Last Xid",
                "max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS) > 0",
                "The number of the last error, not a count: 79 is a GPU off the bus, 48, 63, 64"
                " and 94 are memory, 74 is NVLink.",
                "none",
            ),
            _worst(
                "Rows that could not be remapped",
                "max by (Hostname, gpu) (DCGM_FI_DEV_ROW_REMAP_FAILURE) > 0",
                "Such a GPU is to be replaced.",
            ),
        ),
    ),
)
