"""What a tenant may write that the scheduler reads, each field at its largest legal value."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.kube.placement import MAX_CONDITIONS, MAX_VALUES
from drumline.kube.pod_requests import MOST_RESOURCES
from drumline.kube.views import NodeView, TrainingJobView

Json = dict[str, Any]
NOW: Final = 1_800_000_000.0
_NAMES: Final = [f"{index:0>3}" + "x" * 40 for index in range(64)]
LEVELS: Final = ("zone", "block", "rack", "pair")
_ROLES: Final[list[Json]] = [
    {
        "name": f"r{index}",
        "nodes": 256,
        "command": ["x"],
        "resources": {"cpu": f"{10 + 3 * index}m", "memory": f"{100 - 7 * index}Mi"},
    }
    for index in range(8)
]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def _term(operator: str, *values: str) -> Json:
    expression = {"key": "rack", "operator": operator, "values": list(values)}
    return {"matchExpressions": [expression]}


_TERM: Final = {
    "matchExpressions": [
        {"key": "rack", "operator": "NotIn", "values": _NAMES[:32]} for _ in range(8)
    ]
}

GATED_AT_BOUNDS: Final[Mapping[str, Json]] = {
    "labels": {"nodeSelector": {f"k{number}": "x" for number in range(MAX_CONDITIONS)}},
    "tolerations": {"tolerations": [{"key": "k", "operator": "Exists"}] * MAX_CONDITIONS},
    "resources": {f"e{number}.com/x": "1" for number in range(MOST_RESOURCES - 3)},
    **{
        name: {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}}
        for name, terms in {
            "terms": [_term("Gt", "9" * 18)] * (MAX_CONDITIONS // 2),
            "values": [_term("NotIn", *map(str, range(MAX_VALUES)))],
            "expressions": [{"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}] * 127}],
        }.items()
    },
}
"""Fields of a Pod with our scheduling gate, each at its bound. Maps a field to a spec."""
AT_BOUNDS: Final[Mapping[str, Json]] = {
    "nodes": {"nodes": 10_000},
    "gpusPerNode": {"gpusPerNode": 64},
    "minNodes": {
        "nodes": 10_000,
        "minNodes": 1,
        "template": {"image": "x", "command": ["a"], "launch": "PerGpu"},
    },
    "roles": {"roles": _ROLES},
    "role.gpusPerNode": {"roles": [{**role, "gpusPerNode": 64} for role in _ROLES]},
    "roles, two kinds": {"roles": _ROLES[:2]},
    "roles, one pod each": {"roles": [{**role, "nodes": 1} for role in _ROLES]},
    "roles, just exact": {"roles": [{**role, "nodes": 11} for role in _ROLES[:2]]},
    "role.resources": {
        "roles": [
            {
                **role,
                "resources": {
                    **role["resources"],
                    **{f"e.com/{each}": "1" for each in _NAMES[:14]},
                },
            }
            for role in _ROLES
        ]
    },
    "topology": {
        "nodes": 64,
        "topology": {
            "required": "block",
            "preferred": "rack",
            "slices": [{"level": "block", "nodes": 64}, {"level": "rack", "nodes": 2}],
        },
    },
    "topology.slices": {
        "nodes": 10_000,
        "topology": {
            "slices": [
                {"level": level, "nodes": nodes}
                for level, nodes in zip(LEVELS, (10_000, 1000, 100, 2), strict=True)
            ]
        },
    },
    "topology.balanced": {"nodes": 64, "topology": {"balanced": "rack"}},
    "gpuPools": {"gpuPools": ["h", *(f"p{index}" for index in range(15))]},
    "spot": {
        "nodes": 10_000,
        "minNodes": 1,
        "spot": "Surplus",
        "template": {"image": "x", "command": ["a"], "launch": "PerGpu"},
    },
    "group": {"group": {"name": "g", "jobs": 256}},
    "sweep": {"sweep": {"name": "s", "maxParallel": 10_000}},
    "after": {"after": [{"job": f"other-{index}"} for index in range(16)]},
    "resources": {"resources": {f"example.com/{name}": "1" for name in _NAMES[:15]}},
    "nodeSelector": {"nodeSelector": {f"k{name}": name for name in _NAMES[:32]}},
    "nodeAffinity": {"nodeAffinity": {"required": [_TERM] * 4}},
    "tolerations": {"tolerations": [{"key": name, "operator": "Exists"} for name in _NAMES[:32]]},
    "user": {"user": "x" * 253},
    "activeDeadlineSeconds": {"activeDeadlineSeconds": 31_536_000},
    "maxPricePerGpuHour": {"maxPricePerGpuHour": "1000"},
}
"""By field: what is written into a job."""
NOT_FOR_THE_SCHEDULER: Final = frozenset(
    {
        *(
            "queue",
            "priorityClassName",
            "gpuPool",
            "gpuPartition",
            "computeDomain",
            "trainer",
            "checkpoint",
        ),
        *("recovery", "suspend", "whenIdle", "startDeadlineSeconds", "template"),
        *("ttlSecondsAfterFinished", "managedBy"),
    }
)
"""Fields without a number or a list that the scheduler's work depends on."""
ROLE_FIELDS_OF_PODS: Final = frozenset({"command", "args", "env", "envFrom", "volumeMounts"})
"""Lists of a role that only its Pods have."""
LEAST_IS_WORST: Final = frozenset({"minNodes"})
"""Numbers whose smallest value leaves most sizes to try."""


def bounds_of(schema: Json, path: str = "") -> Iterator[tuple[str, int | None]]:
    """Yield each number, list and map of a schema, with its largest value or length.

    A path is `roles[].nodes` for a number of an item. None: the schema has no bound.
    """
    match schema.get("type"):
        case "object" if "properties" in schema:
            for name, below in schema["properties"].items():
                yield from bounds_of(below, f"{path}.{name}".removeprefix("."))
        case "object":
            yield path, schema.get("maxProperties")
        case "array":
            yield path, schema.get("maxItems")
            yield from bounds_of(schema["items"], f"{path}[]")
        case "integer" | "number":
            yield path, schema.get("maximum")
        case _:
            pass


def drawn(value: Any, path: str) -> int:
    """Return the largest value or length that a document has at a path; 0 without any."""
    if not path:
        return value if isinstance(value, int) else len(value)
    name, _, rest = path.partition(".")
    document: Json = value
    inside: Any = document.get(name.removesuffix("[]"))
    if inside is None:
        return 0
    if name.endswith("[]"):
        return max((drawn(each, rest) for each in inside), default=0)
    return drawn(inside, rest)


class TooManyLinesError(BaseException):
    """More lines of Python were executed than allowed."""


class Lines:
    """Number of executed lines of Python."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def counted_lines(most: int) -> Generator[Lines]:
    """Count the lines that are executed inside, loops and comprehensions too.

    Raises:
        TooManyLinesError: more than `most`.
    """
    lines = Lines()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        del frame, arg
        if event == "line":
            lines.count += 1
            if lines.count > most:
                raise TooManyLinesError(most)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def raw(document: Json) -> bytes:
    return json.dumps(document).encode()


def metadata(name: str, **rest: Any) -> Json:
    return {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **rest,
    }


def node_view(index: int, *, nodes: int, pool: str, changes: Json | None = None) -> NodeView:
    """Return a node that no other one equals.

    Args:
        index: number of the node.
        nodes: number of all nodes.
        pool: name of its pool.
        changes: `ready` and `unschedulable`, and other `labels`.
    """
    changes = changes or {}
    sizes = zip(LEVELS, (nodes, 16, 4, 2), strict=True)
    labels = {level: f"{level[0]}{index // size}" for level, size in sizes}
    labels |= {"gpu": pool, **changes.get("labels", {})}
    amounts = {"memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    ready = "True" if changes.get("ready", True) else "False"
    node = {
        "metadata": metadata(f"n{index:03}", labels=labels),
        "spec": {"unschedulable": True} if changes.get("unschedulable") else {},
        "status": {
            "allocatable": {**amounts, "cpu": f"{64_000 - index}m"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
    return codec.node(raw(node))


def cluster(*, nodes: int, pools: tuple[str, ...] = ("h",)) -> ClusterCache:
    """Nodes in pairs, racks and blocks, no two of them equal, and a queue without limit.

    The pools have equal numbers of nodes. Only the first one is added.
    """
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW), admits_workloads=True)
    for index in range(nodes):
        pool = pools[index * len(pools) // nodes]
        state.nodes.on_node(None, node_view(index, nodes=nodes, pool=pool))
    levels = [{"name": name, "nodeLabel": name} for name in LEVELS]
    pool = {"nodeSelector": {"gpu": "h"}, "topologyLevels": levels}
    state.on_pool(None, codec.custom_object(raw({"metadata": metadata("h"), "spec": pool})))
    quota = {"quotas": [{"gpuPool": "h", "nominalGpus": 100_000}]}
    state.on_queue(None, codec.custom_object(raw({"metadata": metadata("q"), "spec": quota})))
    return state


def _unlike(role: Json, number: int) -> Json:
    """A role that no job with another number has."""
    memory = int(role["resources"]["memory"].removesuffix("Mi"))
    return {**role, "resources": {**role["resources"], "memory": f"{1000 * memory + number}Ki"}}


def spec_of(*changes: Json, number: int = 0) -> Json:
    """Return the spec of a job with some fields at their bounds."""
    spec: Json = {"queue": "q", "template": {"image": "x", "command": ["a"]}}
    spec["resources"] = {"cpu": f"{2000 + number}m"}
    for change in changes:
        resources = {**spec["resources"], **change.get("resources", {})}
        spec |= {**change, "resources": resources}
    if "roles" in spec:
        spec["roles"] = [_unlike(role, number) for role in spec["roles"]]
    return spec


def add_job(
    state: ClusterCache, name: str, *changes: Json, number: int = 0, namespace: str = "team"
) -> TrainingJobView:
    """Add a job; no two jobs with different numbers are equal for the scheduler."""
    spec = spec_of(*changes, number=number)
    document = {"metadata": metadata(name, namespace=namespace), "spec": spec}
    view = codec.training_job(raw(document))
    state.on_job(None, view)
    return view


def add_gated_pod(state: ClusterCache, name: str, field: str) -> None:
    """Add a pod that waits for the queue, with a field at its bound."""
    requests = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1"}
    spec: Json = {"schedulingGates": [{"name": "drumline.dev/queue"}]}
    if field == "resources":
        requests |= GATED_AT_BOUNDS[field]
    else:
        spec |= GATED_AT_BOUNDS[field]
    spec["containers"] = [{"name": "c", "resources": {"requests": requests}}]
    labels = {"drumline.dev/queue": "q"}
    document = {"metadata": metadata(name, namespace="team", labels=labels), "spec": spec}
    state.on_pod(None, codec.pod(raw(document)))
