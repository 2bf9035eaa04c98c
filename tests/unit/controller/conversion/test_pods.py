"""Views -> the values that are decided on."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.nodes.pod_conversion import event_of, facts_of
from drumline.controller.workloads.admitted import counted_members
from drumline.kube.views import ContainerView, EventView, PodPhase, PodView
from drumline.lifecycle.model.observed import PodEnd, PodEvent, PodFacts
from tests.builders import T0
from tests.unit.controller.views import pod_view


def container(**state: Any) -> ContainerView:
    return ContainerView(name="trainer", **state)


def facts(pod: PodView) -> PodFacts:
    converted = facts_of(pod)
    assert converted is not None
    return converted


def test_a_running_member() -> None:
    pod = pod_view(index=1, generation=2, pod_ip="10.0.0.1", containers=(container(ready=True),))
    assert facts(pod) == PodFacts(
        name="llama-1-g2",
        uid="job-1-1-2",
        index=1,
        generation=2,
        node="node-0",
        ip="10.0.0.1",
        ready=True,
    )


@pytest.mark.parametrize(
    ("state", "joining"),
    [
        ({}, True),
        ({"waiting_reason": "PodInitializing"}, False),
        ({"exit_code": 0}, False),
    ],
)
def test_joining_is_the_time_its_container_runs(state: dict[str, Any], joining: bool) -> None:
    join = ContainerView(name="drumline-join", **state)
    assert facts(pod_view(init_containers=(join,))).joining is joining


def test_the_first_container_that_waits_says_why() -> None:
    waits = container(waiting_reason="ImagePullBackOff", waiting_message="not converted " * 50)
    text = facts(pod_view(containers=(waits,))).waiting
    assert text.startswith("ImagePullBackOff: not converted")
    assert len(text) < 550


def test_a_container_that_says_why_it_waits_comes_before_one_that_does_not() -> None:
    silent = container(waiting_reason="ContainerCreating")
    telling = ContainerView(name="mesh", waiting_reason="ErrImagePull", waiting_message="no")
    assert facts(pod_view(containers=(silent, telling))).waiting == "ErrImagePull: no"


@pytest.mark.parametrize(
    ("reason", "evicted"),
    [("EvictionByEvictionAPI", True), ("DeletionByTaintManager", False), ("", False)],
)
def test_an_eviction_is_told_from_other_deletions(reason: str, evicted: bool) -> None:
    pod = facts(
        pod_view(terminating=True, deletion_time="2023-11-14T22:13:20Z", disruption_reason=reason)
    )
    assert (pod.evicted, pod.terminating, pod.terminates_by) == (evicted, True, T0)


@pytest.mark.parametrize(("time", "at"), [("2023-11-14T22:13:20Z", T0), ("", 0.0), ("x", 0.0)])
def test_an_event_about_a_pod(time: str, at: float) -> None:
    view = EventView(reason="FailedMount", message="no", time=time, warning=True)
    assert event_of(view) == PodEvent(reason="FailedMount", message="no", at=at, warning=True)


UNDER_PRESSURE = "Pod was rejected: The node had condition: [DiskPressure]. "


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        ({}, None),
        ({"phase": PodPhase.PENDING}, None),
        (
            {
                "phase": PodPhase.SUCCEEDED,
                "containers": (
                    container(exit_code=0, exit_reason="Completed", termination_message="bye"),
                ),
            },
            PodEnd(succeeded=True, exit_code=0, reason="Completed", message="bye"),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "containers": (
                    container(
                        exit_code=137,
                        exit_reason="OOMKilled",
                        finished_time="2023-11-14T22:13:20Z",
                    ),
                ),
                "init_containers": (ContainerView(name="drumline-join", exit_code=0),),
            },
            PodEnd(succeeded=False, exit_code=137, reason="OOMKilled", ended_at=T0),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "containers": (container(),),
                "init_containers": (ContainerView(name="drumline-join", exit_code=64),),
            },
            PodEnd(succeeded=False, exit_code=64),
        ),
        (
            {"phase": PodPhase.FAILED, "reason": "OutOfcpu", "message": "no room"},
            PodEnd(succeeded=False, reason="OutOfcpu", message="no room"),
        ),
        (
            {"phase": PodPhase.FAILED, "reason": "Evicted", "message": UNDER_PRESSURE},
            PodEnd(succeeded=False, reason="Evicted", message=UNDER_PRESSURE),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "reason": "Evicted",
                "disruption_reason": "TerminationByKubelet",
                "containers": (container(exit_code=143, exit_reason="Error"),),
            },
            PodEnd(succeeded=False, exit_code=143, reason="Evicted"),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "reason": "Evicted",
                "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".',
                "containers": (container(exit_code=137, exit_reason="Error"),),
            },
            PodEnd(
                succeeded=False,
                exit_code=137,
                reason="Evicted",
                own_limit='Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".',
            ),
        ),
    ],
)
def test_how_a_pod_ended(pod: dict[str, Any], end: PodEnd | None) -> None:
    assert facts(pod_view(**pod)).end == end


SIDECAR = ContainerView(name="mesh", ready=True)


@pytest.mark.parametrize(
    ("pod", "succeeded", "lingers"),
    [
        ({"containers": (container(exit_code=0), SIDECAR)}, True, True),
        ({"containers": (SIDECAR, container(exit_code=3))}, False, True),
        (
            {
                "phase": PodPhase.FAILED,
                "containers": (ContainerView(name="mesh", exit_code=137), container(exit_code=0)),
            },
            True,
            False,
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "reason": "Evicted",
                "containers": (container(exit_code=0), ContainerView(name="mesh", exit_code=137)),
            },
            False,
            False,
        ),
    ],
    ids=["succeeded-beside-it", "failed-beside-it", "the-sidecar-failed", "evicted"],
)
def test_an_injected_sidecar_does_not_decide_how_a_pod_ended(
    pod: dict[str, Any], succeeded: bool, lingers: bool
) -> None:
    seen = facts(pod_view(**pod))
    assert seen.end is not None
    assert (seen.end.succeeded, seen.lingers, seen.holds_node) == (succeeded, lingers, lingers)


@pytest.mark.parametrize(
    ("containers", "closing"),
    [
        ((container(exit_code=0),), True),
        ((container(exit_code=0), SIDECAR), False),
        ((container(ready=True),), False),
    ],
    ids=["native-sidecar", "sidecar-beside-it", "trains"],
)
def test_a_pod_closes_by_itself_where_only_native_sidecars_run_on(
    containers: tuple[ContainerView, ...], closing: bool
) -> None:
    daemon = ContainerView(name="tcpxo-daemon", ready=True)
    seen = facts(pod_view(containers=containers, init_containers=(daemon,)))
    assert (seen.closing, seen.holds_node) == (closing, True)


def test_a_sidecar_that_was_stopped_is_not_why_a_pod_failed() -> None:
    proxy = ContainerView(name="proxy", is_sidecar=True, exit_code=143)
    fetch = ContainerView(name="fetch", exit_code=3)
    pod = pod_view(phase=PodPhase.FAILED, containers=(container(),), init_containers=(proxy, fetch))
    assert facts(pod).end == PodEnd(succeeded=False, exit_code=3)


def test_a_sidecar_that_crashes_is_no_end_and_not_the_first_to_say_why_a_pod_waits() -> None:
    crashes = ContainerView(
        name="proxy", is_sidecar=True, waiting_reason="CrashLoopBackOff", waiting_message="again"
    )
    trains = facts(pod_view(containers=(container(ready=True),), init_containers=(crashes,)))
    assert (trains.ready, trains.end) == (True, None)
    ended = ContainerView(name="proxy", is_sidecar=True, exit_code=1)
    assert (
        facts(pod_view(containers=(container(ready=True),), init_containers=(ended,))).end is None
    )
    waits = container(waiting_reason="ErrImagePull", waiting_message="no")
    assert facts(pod_view(containers=(waits,), init_containers=(crashes,))).waiting == (
        "ErrImagePull: no"
    )


def test_an_injected_sidecar_does_not_decide_whether_a_member_is_ready() -> None:
    starts = ContainerView(name="mesh", waiting_reason="PodInitializing")
    assert facts(pod_view(ready=False, containers=(container(ready=True), starts))).ready
    assert not facts(pod_view(ready=True, containers=(container(), SIDECAR))).ready


def test_what_the_main_container_runs() -> None:
    mesh = ContainerView(name="mesh", image_id="mesh@sha256:2")
    pod = pod_view(containers=(mesh, container(image_id="a@sha256:1")))
    assert facts(pod).image_id == "a@sha256:1"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"drumline.dev/index": "x"},
        {"drumline.dev/index": "-1"},
        {"drumline.dev/index": "7"},
        {"drumline.dev/generation": ""},
    ],
)
def test_a_pod_whose_labels_do_not_fit_its_name_is_none_of_ours(labels: dict[str, str]) -> None:
    right = pod_view()
    wrong = PodView(
        namespace="team",
        name=right.name,
        uid="u",
        resource_version="1",
        owner_uid="job-1",
        labels={**right.labels, **labels} if labels else {},
    )
    assert facts_of(wrong) is None


def test_a_pod_that_is_about_to_be_bound_is_a_member_there_and_takes_nothing_yet() -> None:
    annotations = {"drumline.dev/node": "node-3"}
    waiting = facts(pod_view(node_name="", annotations=annotations))
    assert (waiting.node, waiting.unbound) == ("node-3", True)
    assert counted_members([waiting]) == frozenset()
    bound = facts(pod_view(node_name="node-3", annotations=annotations))
    assert counted_members([bound]) == {(0, 1, "node-3")}
