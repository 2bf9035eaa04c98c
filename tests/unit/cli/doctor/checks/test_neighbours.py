from __future__ import annotations

from dataclasses import replace

from drumline_cli.doctor.checks.neighbours import (
    PROMETHEUS_GROUP,
    autoscalers,
    monitoring,
    schedulers,
)
from drumline_cli.doctor.facts import DevicePod, MonitorFact, PrometheusFact
from drumline_cli.doctor.results import CheckFailed, Passed, Warned
from tests.texts import missing
from tests.unit.cli.doctor.facts import H100, a_node, a_pool

NOTEBOOK = DevicePod(
    namespace="lab",
    name="notebook",
    node="gpu-0",
    scheduler="default-scheduler",
    ours=False,
    daemon=False,
    requests={"nvidia.com/gpu": 2},
)


def test_gpus_that_others_hold_are_counted_by_pool() -> None:
    pods = (
        NOTEBOOK,
        replace(NOTEBOOK, name="ours", ours=True),
        replace(NOTEBOOK, name="exporter", daemon=True),
        replace(NOTEBOOK, name="elsewhere", node="cpu-0"),
        replace(NOTEBOOK, name="rdma", requests={"rdma/hca": 1}),
    )
    (result,) = schedulers(pods, (a_pool(),), (a_node(),), frozenset())
    assert isinstance(result, Warned)
    assert not missing(result.message, "h100", "2 GPUs", "lab/notebook")


def test_another_scheduler_alone_is_no_fault() -> None:
    groups = frozenset({"kueue.x-k8s.io/v1beta2"})
    (result,) = schedulers((), (a_pool(),), (a_node(),), groups)
    assert isinstance(result, Passed)
    assert not missing(result.message, "Kueue")


def test_an_autoscaler_is_known_by_its_api_and_by_its_nodes() -> None:
    (by_group,) = autoscalers(frozenset({"karpenter.sh/v1"}), (), (a_pool(),))
    labelled = a_node(labels={**H100, "karpenter.sh/nodepool": "gpu"})
    (by_label,) = autoscalers(frozenset(), (labelled,), (a_pool(),))
    assert isinstance(by_group, Warned)
    assert by_group == by_label
    (none,) = autoscalers(frozenset({"autoscaling/v2"}), (a_node(),), ())
    assert isinstance(none, Passed)


def test_a_pool_that_asks_for_nodes_needs_none_that_stand() -> None:
    karpenter = frozenset({"karpenter.sh/v1"})
    node = {"allocatable": {"nvidia.com/gpu": 8}}
    scaling = {"mode": "Placeholders", "maxNodes": 4, "node": node}
    grows = a_pool("grows", autoscaling=scaling)
    (asked,) = autoscalers(karpenter, (), (grows,))
    assert isinstance(asked, Passed)
    (half,) = autoscalers(karpenter, (), (grows, a_pool("still")))
    assert isinstance(half, Warned)
    assert "(still)" in half.message
    (nothing,) = autoscalers(karpenter, (), ())
    assert isinstance(nothing, Warned)
    assert "no GpuPool" in nothing.message


def test_a_monitor_that_no_prometheus_selects_fails_with_the_label_it_lacks() -> None:
    groups = frozenset({PROMETHEUS_GROUP})
    prometheus = PrometheusFact(
        namespace="monitoring",
        name="main",
        selectors={"ServiceMonitor": {"release": "kps"}, "PodMonitor": {}, "PrometheusRule": None},
    )
    kinds = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
    monitors = tuple(MonitorFact(kind=kind, name="drumline", labels={"a": "b"}) for kind in kinds)
    service, pods, rules = monitoring(groups, (prometheus,), monitors)
    assert isinstance(service, CheckFailed)
    assert not missing(service.message, "release=kps")
    assert isinstance(pods, Passed)
    assert not missing(pods.message, "PodMonitor drumline", "monitoring/main")
    assert isinstance(rules, CheckFailed)
    assert "no Prometheus selects monitors" in rules.message
    (unwatched,) = monitoring(groups, (prometheus,), ())
    assert isinstance(unwatched, Warned)
    (without,) = monitoring(frozenset(), (), ())
    assert isinstance(without, Passed)
