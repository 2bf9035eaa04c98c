"""All checks, by name, in the order in which they are read: first what the others rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, overload

from drumline_cli.doctor.checks import hardware, installation, neighbours, probes, storage, tenants
from drumline_cli.doctor.facts import ClusterFacts, Fact, Unread
from drumline_cli.doctor.results import Finding, Result, Undecided

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Results = Iterable[Result]
_RIGHTS: Final = "run it as a user who may read that, or as `helm test drumline`"


def examine(facts: ClusterFacts) -> list[Finding]:
    """Return the findings of all checks."""
    return [
        Finding(check=name, result=result)
        for name, check in CHECKS.items()
        for result in check(facts)
    ]


@overload
def _of(check: Callable[[A], Results], first: Fact[A], /) -> Results: ...
@overload
def _of(check: Callable[[A, B], Results], first: Fact[A], second: Fact[B], /) -> Results: ...
@overload
def _of(
    check: Callable[[A, B, C], Results], first: Fact[A], second: Fact[B], third: Fact[C], /
) -> Results: ...
@overload
def _of(
    check: Callable[[A, B, C, D], Results],
    first: Fact[A],
    second: Fact[B],
    third: Fact[C],
    fourth: Fact[D],
    /,
) -> Results: ...
def _of(check: Callable[..., Results], /, *facts: Any) -> Results:
    """Return the check's results, or undecided if one of its facts is missing."""
    return list(_unread(facts)) or check(*facts)


def _unread(facts: Iterable[Any]) -> Iterator[Result]:
    for reason in dict.fromkeys(fact.reason for fact in facts if isinstance(fact, Unread)):
        yield Undecided(message=reason, fix=_RIGHTS)


CHECKS: Final[dict[str, Callable[[ClusterFacts], Results]]] = {
    "Kubernetes": lambda facts: _of(installation.kubernetes, facts.server, facts.groups),
    "Custom resources": lambda facts: _of(
        installation.custom_resources,
        facts.schemas,
        facts.expected_fields,
        facts.system_namespace,
    ),
    "Operator": lambda facts: _of(
        installation.operator, facts.operator, facts.schemas, facts.system_namespace
    ),
    "Priorities": lambda facts: _of(installation.priorities, facts.priorities, facts.operator),
    "GPUs": lambda facts: _of(hardware.gpus, facts.nodes, facts.slices),
    "Pools": lambda facts: _of(hardware.pools, facts.pools, facts.nodes),
    "Topology": lambda facts: _of(hardware.topology, facts.pools, facts.nodes),
    "Clocks": lambda facts: _of(hardware.clocks, facts.clocks),
    "Queues": lambda facts: _of(tenants.queues, facts.queues, facts.pools, facts.nodes, facts.jobs),
    "Guarded pools": lambda facts: _of(
        tenants.guarded_pools, facts.operator, facts.pools, facts.queues
    ),
    "Pod Security": lambda facts: _of(
        tenants.pod_security, facts.namespaces, facts.queues, facts.pools, facts.jobs
    ),
    "Shared storage": lambda facts: _of(
        storage.shared_storage, facts.claims, facts.storage_classes, facts.jobs
    ),
    "Image": lambda facts: _of(probes.images, facts.probes),
    "Locked memory": lambda facts: _of(probes.locked_memory, facts.probes),
    "Network policies": lambda facts: _of(probes.network_policies, facts.probes),
    "Autoscaler": lambda facts: _of(neighbours.autoscalers, facts.groups, facts.nodes, facts.pools),
    "Other schedulers": lambda facts: _of(
        neighbours.schedulers, facts.device_pods, facts.pools, facts.nodes, facts.groups
    ),
    "Monitoring": lambda facts: _of(
        neighbours.monitoring, facts.groups, facts.prometheuses, facts.monitors
    ),
}
