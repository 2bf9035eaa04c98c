"""A pod takes what kube-scheduler says it takes."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from drumline.kube import pod_requests as pod_requests_module
from drumline.kube.pod_requests import (
    MOST_KNOWN,
    bounded_requests,
    pod_limits,
    pod_requests,
    with_default_requests,
)
from drumline_api.base import POD_CLAIM_CHANNEL
from drumline_api.objects.builtin import PodSpec, PodStatus


def _asks(*, always: bool = False, **requests: str) -> dict[str, Any]:
    named = {name.replace("gpu", "nvidia.com/gpu"): text for name, text in requests.items()}
    policy = {"restartPolicy": "Always"} if always else {}
    return {"name": "any", "resources": {"requests": named}} | policy


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [{"name": "idle"}]}, {}, id="nothing asked"),
        pytest.param(
            {"containers": [_asks(cpu="500m", gpu="4"), _asks(cpu="2", memory="1Gi")]},
            {"cpu": 2500, "nvidia.com/gpu": 4, "memory": 2**30},
            id="containers run together",
        ),
        pytest.param(
            {
                "containers": [_asks(cpu="1", memory="1Gi")],
                "initContainers": [_asks(cpu="3"), _asks(cpu="2", memory="512Mi")],
            },
            {"cpu": 3000, "memory": 2**30},
            id="init containers run one after the other",
        ),
        pytest.param(
            {
                "containers": [_asks(cpu="1")],
                "initContainers": [
                    _asks(cpu="4"),
                    _asks(always=True, cpu="2"),
                    _asks(cpu="3"),
                ],
            },
            {"cpu": 5000},
            id="a sidecar runs beside every init container after it",
        ),
        pytest.param(
            {
                "containers": [_asks(cpu="4")],
                "initContainers": [_asks(cpu="1"), _asks(always=True, cpu="2")],
            },
            {"cpu": 6000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {
                "containers": [_asks(cpu="1", gpu="8")],
                "resources": {"requests": {"cpu": "3"}},
                "overhead": {"cpu": "250m", "memory": "120Mi"},
            },
            {"cpu": 3250, "nvidia.com/gpu": 8, "memory": 120 * 2**20},
            id="the pod's own requests replace the sum, overhead comes on top",
        ),
    ],
)
def test_requests_of_a_pod(spec: dict[str, Any], expected: dict[str, int]) -> None:
    assert pod_requests(msgspec.convert(spec, PodSpec)) == expected


def _shown(**fields: dict[str, Any]) -> PodStatus:
    return msgspec.convert({"containerStatuses": [{"name": "any", **fields}]}, PodStatus)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"allocatedResources": {"memory": "900Gi"}}, 900),
        ({"resources": {"requests": {"memory": "700Gi"}}}, 700),
        ({"allocatedResources": {"memory": "10Gi"}}, 10),
        ({"allocatedResources": {"memory": "5Gi"}}, 10),
        ({}, 10),
    ],
)
def test_the_larger_figure_counts_while_a_resize_is_pending(
    status: dict[str, Any], expected: int
) -> None:
    spec = msgspec.convert({"containers": [_asks(memory="10Gi", cpu="500m")]}, PodSpec)
    assert pod_requests(spec, _shown(**status)) == {"memory": expected << 30, "cpu": 500}


@pytest.mark.parametrize(("reason", "expected"), [("Infeasible", 5), ("Deferred", 900)])
def test_a_resize_that_never_fits_does_not_fill_the_node(reason: str, expected: int) -> None:
    spec = msgspec.convert({"containers": [_asks(memory="900Gi"), {"name": "new"}]}, PodSpec)
    held = {"name": "any", "allocatedResources": {"memory": "5Gi"}}
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    status = msgspec.convert({"containerStatuses": [held], "conditions": [pending]}, PodStatus)
    assert pod_requests(spec, status) == {"memory": expected << 30}


@pytest.mark.parametrize(
    ("wanted", "reason", "expected"),
    [("5Gi", "", 900), ("990Gi", "Deferred", 990), ("990Gi", "Infeasible", 900)],
)
def test_a_resize_of_the_pod_as_a_whole_counts_like_one_of_a_container(
    wanted: str, reason: str, expected: int
) -> None:
    raw = {"containers": [_asks(memory="1Gi")], "resources": {"requests": {"memory": wanted}}}
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    status: dict[str, Any] = {
        "allocatedResources": {"memory": "800Gi", "cpu": "7"},
        "resources": {"requests": {"memory": "900Gi"}},
        "conditions": [pending],
    }
    held = pod_requests(msgspec.convert(raw, PodSpec), msgspec.convert(status, PodStatus))
    assert held == {"memory": expected << 30}
    # Without requests of the pod as a whole the status has sums over its containers.
    del raw["resources"]
    alone = pod_requests(msgspec.convert(raw, PodSpec), msgspec.convert(status, PodStatus))
    assert alone == {"memory": 1 << 30}


@pytest.mark.parametrize(("name", "request_of_pod"), [("hugepages-2Mi", 8), ("memory", 2)])
def test_only_huge_pages_of_a_pod_are_requested_up_to_its_limit(
    name: str, request_of_pod: int
) -> None:
    """The API server writes such a default into pods, not into templates."""
    container = {"name": "any", "resources": {"limits": {name: "2"}}}
    raw = {"containers": [container], "resources": {"limits": {name: "8"}}}
    assert pod_requests(with_default_requests(msgspec.convert(raw, PodSpec))) == {
        name: request_of_pod
    }


def test_limits_are_summed_as_requests_are() -> None:
    def limited(cpu: str) -> dict[str, Any]:
        return {"name": "any", "resources": {"limits": {"cpu": cpu}}}

    raw = {"containers": [limited("1"), limited("2")], "initContainers": [limited("4")]}
    assert pod_limits(msgspec.convert(raw, PodSpec)) == {"cpu": 4000}
    overhead = {"overhead": {"cpu": "250m", "memory": "1Gi"}}
    assert pod_limits(msgspec.convert(raw | overhead, PodSpec)) == {"cpu": 4250}


def _random_pod(random: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod with sidecars and requests of its own, of which some are being resized."""

    def amounts() -> dict[str, str]:
        return {
            name: str(random.randint(1, 9)) for name in ("cpu", "memory") if random.random() < 0.7
        }

    def shown() -> dict[str, Any]:
        actuated = {"memory": "3", **amounts()}
        return {"resources": {"requests": actuated}, "allocatedResources": amounts()}

    def containers(prefix: str) -> list[dict[str, Any]]:
        count = random.randint(1, 3)
        return [
            {"name": f"{prefix}{i}", "resources": {"requests": amounts()}} for i in range(count)
        ]

    mains, inits = containers("main"), containers("init")
    for each in inits:
        each.update(random.choice([{}, {"restartPolicy": "Always"}]))
    spec: dict[str, Any] = {"containers": mains, "initContainers": inits}
    spec |= random.choice([{}, {"resources": {"requests": amounts()}}])
    spec |= random.choice([{}, {"overhead": amounts()}])
    resized = [each for each in (*mains, *inits) if "main" in each["name"] or len(each) > 2]
    status: dict[str, Any] = {
        "containerStatuses": [
            {"name": each["name"], **shown()} for each in resized if random.random() < 0.5
        ],
        "conditions": random.choice([[], [_pending("Infeasible")], [_pending("Deferred")]]),
    }
    return spec, status | random.choice([{}, shown()])


Json = dict[str, Any]


def _effective(wanted: Json, shown: Json | None, *, infeasible: bool) -> Json:
    """Transcribe determineEffectiveRequests of k8s.io/component-helpers."""
    if shown is None:
        return wanted
    parts = [shown["resources"]["requests"], shown["allocatedResources"]]
    parts += [] if infeasible else [wanted]
    names = {name for part in parts for name in part}
    return {name: max(int(part.get(name, 0)) for part in parts) for name in names}


def _transcribed(spec: Json, status: Json) -> dict[str, int]:
    """Transcribe PodRequests."""
    infeasible = any(each["reason"] == "Infeasible" for each in status["conditions"])
    shown = {each["name"]: each for each in status["containerStatuses"]}

    def of(container: Json) -> Json:
        wanted = container["resources"]["requests"]
        return _effective(wanted, shown.get(container["name"]), infeasible=infeasible)

    total: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for each in spec["containers"]:
        total.update(_whole(of(each)))
    for each in spec["initContainers"]:
        asked = _whole(of(each))
        if "restartPolicy" in each:
            total.update(asked)
            sidecars.update(asked)
            peak |= sidecars
        else:
            peak |= sidecars + asked
    total |= peak
    wanted = spec.get("resources", {"requests": {}})["requests"]
    effective = _effective(wanted, status if "resources" in status else None, infeasible=infeasible)
    for name in wanted:
        # kube-scheduler counts 0 of what an infeasible resize adds. The containers still use it.
        total[name] = int(effective.get(name, total[name]))
    total.update(_whole(spec.get("overhead", {})))
    return {name: count for name, count in total.items() if count}


def _whole(amounts: Json) -> Counter[str]:
    return Counter({name: int(count) for name, count in amounts.items()})


@pytest.mark.parametrize("seed", range(100))
def test_requests_are_those_that_kube_scheduler_computes(seed: int) -> None:
    for spec, status in map(_random_pod, [Random(f"{seed} {number}") for number in range(20)]):
        counted = pod_requests(msgspec.convert(spec, PodSpec), msgspec.convert(status, PodStatus))
        cpu = {"cpu": counted["cpu"] // 1000} if "cpu" in counted else {}
        assert counted | cpu == _transcribed(spec, status), (spec, status)


PLAIN: dict[str, Any] = {"containers": [_asks(cpu="1", gpu="1")]}
CHANNEL = [{"name": POD_CLAIM_CHANNEL}]


FIVE = {"cpu": "5"}
WHOLE = PLAIN | {"resources": {"requests": {"cpu": "250m"}}}


def _named(**cpus: str) -> dict[str, Any]:
    return {"containers": [_asks(cpu=cpu) | {"name": name} for name, cpu in cpus.items()]}


def _pending(reason: str) -> dict[str, str]:
    return {"type": "PodResizePending", "status": "True", "reason": reason}


def _waits(reason: str) -> dict[str, Any]:
    held = {"name": "any", "allocatedResources": {"cpu": "3"}}
    return {"containerStatuses": [held], "conditions": [_pending(reason)]}


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PLAIN, {}),
    ({"containers": [_asks(cpu="2", gpu="1")]}, {}),
    ({"containers": [_asks(cpu="1", gpu="1"), _asks(cpu="4")]}, {}),
    (PLAIN | {"initContainers": [_asks(cpu="4")]}, {}),
    (PLAIN | {"initContainers": [_asks(always=True, cpu="4")]}, {}),
    (PLAIN | {"overhead": {"cpu": "250m"}}, {}),
    (WHOLE, {}),
    (PLAIN | {"resources": {"requests": {"cpu": "300m"}}}, {}),
    (WHOLE, {"allocatedResources": FIVE}),
    (WHOLE, {"allocatedResources": {"cpu": "6"}}),
    (WHOLE, {"resources": {"requests": {"cpu": "7"}}}),
    (WHOLE, {"resources": {"requests": {"cpu": "8"}}}),
    (WHOLE, {"allocatedResources": {"cpu": "100m"}, "conditions": [_pending("Deferred")]}),
    (WHOLE, {"allocatedResources": {"cpu": "100m"}, "conditions": [_pending("Infeasible")]}),
    (PLAIN | {"resourceClaims": CHANNEL}, {}),
    (PLAIN, {"containerStatuses": [{"name": "any", "allocatedResources": {"cpu": "5"}}]}),
    (PLAIN, {"containerStatuses": [{"name": "other", "allocatedResources": {"cpu": "5"}}]}),
    (PLAIN, {"containerStatuses": [{"name": "any", "resources": {"requests": {"cpu": "6"}}}]}),
    (PLAIN, {"containerStatuses": [{"name": "any", "resources": {"requests": {"cpu": "7"}}}]}),
    (_named(a="1", b="2"), {"containerStatuses": [{"name": "a", "allocatedResources": FIVE}]}),
    (_named(b="1", a="2"), {"containerStatuses": [{"name": "a", "allocatedResources": FIVE}]}),
    ({"containers": [_asks(cpu="5")]}, _waits("Infeasible")),
    ({"containers": [_asks(cpu="5")]}, _waits("Deferred")),
]


def test_requests_that_are_remembered_are_those_of_an_equal_pod() -> None:
    pods = [
        (msgspec.convert(spec, PodSpec), msgspec.convert(status, PodStatus))
        for spec, status in DIFFERENT
    ]
    computed = [pod_requests(*pod) for pod in pods]
    first, again = ([bounded_requests(*pod) for pod in pods] for _ in range(2))
    assert first == computed
    assert all(known is repeated for known, repeated in zip(first, again, strict=True))


def test_few_and_small_pods_are_remembered() -> None:
    for number in range(2 * MOST_KNOWN):
        spec = msgspec.convert({"containers": [_asks(cpu=f"{number}m")]}, PodSpec)
        bounded_requests(spec, PodStatus())
        assert len(pod_requests_module._known) <= MOST_KNOWN
    many = {f"example.com/{number}": "1" for number in range(60)}
    large = msgspec.convert({"containers": [_asks(**many)]}, PodSpec)
    assert bounded_requests(large, PodStatus()) is not bounded_requests(large, PodStatus())
