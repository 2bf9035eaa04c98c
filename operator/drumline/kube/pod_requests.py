"""Requests of a pod, summed as kube-scheduler sums them.

Containers run together, so their requests are added. Init containers run one after the other, so
the largest counts. An init container that restarts always (a sidecar, KEP-753) runs beside all
later ones. Requests of the pod as a whole (KEP-2837) replace the sum for their resources. The
runtime's overhead is added. During an in-place resize, the maximum of the spec and the allocated
and actuated requests counts. The spec of a resize that does not fit the node (Infeasible) does not
count: the kubelet does not carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

from msgspec import structs

from drumline.kube.quantity import CPU, amount
from drumline_api.base import POD_CLAIM_CHANNEL, RESOURCE_CHANNEL
from drumline_api.objects.builtin import (
    Container,
    ContainerStatus,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
)
from drumline_api.resource_names import is_gpu

MOST_RESOURCES: Final = 64
"""Most resources of a pod that are kept."""
MOST_KNOWN: Final = 512
"""Most different pods whose requests are remembered."""
_MOST_TEXTS: Final = 32
"""Most quantities of a pod whose requests are remembered. A tenant may write thousands."""
_WHOLE_NODE: Final = 2**63 - 1
Amounts = dict[str, int]
_Texts = tuple[tuple[str, str | int | float], ...]
_known: Final[dict[tuple[object, ...], Amounts]] = {}
"""Requests by the texts that they are made of: the pods of a gang, and of a sweep, are equal."""
Spec = TypeVar("Spec", bound=PodSpec)
_Part = Callable[[Container], Quantities | None]


def pod_requests(spec: PodSpec, status: PodStatus | None = None) -> Amounts:
    """Return the pod's requests by resource: CPU in thousandths, all others in whole units.

    Kubernetes does not count a claim for a channel of a ComputeDomain. It counts as one here.

    Args:
        spec: spec of the pod.
        status: status of the pod. It shows the requests that a pending resize still holds.

    Raises:
        ValueError: a request is not a valid quantity.
    """
    # Order as in `PodRequests` of k8s.io/component-helpers: containers, resize, overhead.
    together = _sum(spec, _requests) if status is None else _held(spec, status)
    if spec.overhead:
        # The overhead comes last: pod-level requests do not include it.
        _add(together, _parsed(spec.overhead))
    if _has_channel(spec):
        # A node has one channel of a domain, so two such pods cannot share it.
        together[RESOURCE_CHANNEL] = 1
    return together


def bounded_requests(spec: PodSpec, status: PodStatus) -> Amounts:
    """Return `pod_requests`, with at most `MOST_RESOURCES` resources. Equal pods share one dict.

    A kubelet ignores resources that its node lacks, so a tenant may request thousands of them. A
    pod with more resources than are kept holds the CPU of its whole node. So no gang is placed
    beside requests that are not known.

    Raises:
        ValueError: a request is not a valid quantity.
    """
    texts = _texts_of(spec, status)
    known = _known.get(texts)
    if known is None:
        known = _bounded(spec, status)
        if _length_of(spec, status) <= _MOST_TEXTS:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[texts] = known
    return known


def _bounded(spec: PodSpec, status: PodStatus) -> Amounts:
    requests = pod_requests(spec, status)
    if len(requests) <= MOST_RESOURCES:
        return requests
    # Resources of Kubernetes have no domain. They and GPUs are kept first.
    names = sorted(requests, key=lambda name: ("/" in name, not is_gpu(name), name))
    kept = {name: requests[name] for name in islice(names, MOST_RESOURCES)}
    return kept | {CPU: _WHOLE_NODE}


def _texts_of(spec: PodSpec, status: PodStatus) -> tuple[object, ...]:
    """Return all that `pod_requests` reads of a pod."""
    resized = [each for each in _statuses(status) if each.allocated_resources or each.resources]
    return (
        *((each.name, _texts(each.resources.requests)) for each in spec.containers),
        None,
        *(
            (each.name, each.restart_policy, _texts(each.resources.requests))
            for each in spec.init_containers or ()
        ),
        *(
            (each.name, _texts(each.allocated_resources), _texts(_actuated(each)))
            for each in resized
        ),
        _texts(spec.overhead),
        *_texts_of_whole(spec, status),
        bool(resized or spec.resources) and _is_infeasible(status),
        spec.resource_claims is not None and _has_channel(spec),
    )


def _texts_of_whole(spec: PodSpec, status: PodStatus) -> tuple[_Texts, ...]:
    """Return the requests of a pod as a whole, and those that its node has for them."""
    if spec.resources is None:
        return ()
    shown = _texts(status.allocated_resources), _texts(_actuated(status))
    return (_texts(spec.resources.requests), *shown)


def _length_of(spec: PodSpec, status: PodStatus) -> int:
    """Return the number of containers and quantities in `_texts_of`."""
    parts = [
        *(each.resources.requests for each in spec.containers),
        *(each.resources.requests for each in spec.init_containers or ()),
        *(each.allocated_resources for each in _statuses(status)),
        *map(_actuated, _statuses(status)),
        spec.overhead,
        spec.resources.requests if spec.resources is not None else None,
        status.allocated_resources,
        _actuated(status),
    ]
    return len(spec.containers) + len(spec.init_containers or ()) + sum(len(p or ()) for p in parts)


def _texts(quantities: Quantities | None) -> _Texts:
    return tuple(quantities.items()) if quantities else ()


def _statuses(status: PodStatus) -> Iterable[ContainerStatus]:
    return (*(status.container_statuses or ()), *(status.init_container_statuses or ()))


def _actuated(status: ContainerStatus | PodStatus) -> Quantities | None:
    return status.resources.requests if status.resources is not None else None


def _has_channel(spec: PodSpec) -> bool:
    return any(claim.name == POD_CLAIM_CHANNEL for claim in spec.resource_claims or ())


def _is_infeasible(status: PodStatus) -> bool:
    """Return whether the kubelet does not carry out the resize that the spec states."""
    return any(
        (each.type, each.status, each.reason) == ("PodResizePending", "True", "Infeasible")
        for each in status.conditions or ()
    )


def pod_limits(spec: PodSpec) -> Amounts:
    """Return the pod's limits, summed as a ResourceQuota sums them.

    Raises:
        ValueError: a limit is not a valid quantity.
    """
    limits = _sum(spec, lambda container: container.resources.limits)
    # Overhead counts only for resources that are limited.
    _add(limits, {name: n for name, n in _parsed(spec.overhead).items() if limits.get(name)})
    return limits


def _sum(spec: PodSpec, part: _Part) -> Amounts:
    together: Amounts = {}
    for container in spec.containers:
        _add(together, _parsed(part(container)))
    if spec.init_containers:
        together = _with_init_containers(together, spec.init_containers, part)
    if spec.resources is not None:
        # Pod-level requests replace the sum even if they are smaller. The server rejects smaller
        # ones.
        together |= _parsed(part(Container(resources=spec.resources)))
    return together


def _held(spec: PodSpec, status: PodStatus) -> Amounts:
    """Return the sum of the requests, with the allocated and actuated ones during a resize.

    https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/1287-in-place-update-pod-resources
    """
    seen = {each.name: each for each in _statuses(status)}
    # The common case: no resize is pending, and the sum needs no second pass.
    whole = _taken(status) if spec.resources is not None else {}
    if not whole and not any(each.allocated_resources or each.resources for each in seen.values()):
        return _sum(spec, _requests)
    infeasible = _is_infeasible(status)

    def held(container: Container) -> Quantities | None:
        shown = seen.get(container.name)
        if shown is None or not (shown.allocated_resources or shown.resources):
            return container.resources.requests
        wanted = _parsed(container.resources.requests)
        most = _with_taken(wanted, _taken(shown), infeasible=infeasible)
        # CPU is in thousandths here, and `_sum` parses quantities. The suffix keeps the unit.
        return {name: f"{count}m" if name == CPU else count for name, count in most.items()}

    together = _sum(structs.replace(spec, resources=None), held)
    # Only requests of the pod as a whole: otherwise the status has the sum over its containers.
    wanted = _parsed(spec.resources.requests) if spec.resources is not None else {}
    taken = {name: count for name, count in whole.items() if name in wanted}
    return together | (_with_taken(wanted, taken, infeasible=infeasible) if whole else wanted)


def _taken(shown: ContainerStatus | PodStatus) -> Amounts:
    """Return the larger of the allocated and the actuated requests."""
    taken = _parsed(shown.allocated_resources)
    _raise_to(taken, _parsed(_actuated(shown)))
    return taken


def _with_taken(wanted: Amounts, taken: Amounts, *, infeasible: bool) -> Amounts:
    """Return what is held: the larger amount, or what was taken if a resize is infeasible.

    A resize may add a resource. An infeasible one must not fill the node with it.
    """
    if infeasible:
        return taken
    _raise_to(wanted, taken)
    return wanted


def with_default_requests(spec: Spec) -> Spec:
    """Return the spec with its pods' defaults: requests default to limits.

    The API server writes these defaults into pods, not into templates (SetDefaults_Pod in
    pkg/apis/core/v1/defaults.go).
    """
    defaulted = structs.replace(
        spec,
        containers=list(map(_with_requests, spec.containers)),
        init_containers=list(map(_with_requests, spec.init_containers or ())),
    )
    if spec.resources is None:
        return defaulted
    # A limit of the pod becomes its request only where no container requests the resource. Huge
    # pages cannot be overcommitted, so their limit is always the request.
    asked = pod_requests(structs.replace(defaulted, resources=None, overhead=None))
    limits = {
        name: limit
        for name, limit in (spec.resources.limits or {}).items()
        if name not in asked or name.startswith("hugepages-")
    }
    requests = {**limits, **(spec.resources.requests or {})}
    resources = ResourceRequirements(requests=requests)
    return structs.replace(defaulted, resources=resources)


def _with_requests(container: Container) -> Container:
    asked = container.resources
    # The server copies a limit to a missing request only. A request that is set wins.
    requests = {**(asked.limits or {}), **(asked.requests or {})}
    return structs.replace(container, resources=ResourceRequirements(requests=requests))


def channel_claim(status: PodStatus) -> str:
    """Return the name of the claim for the pod's channel, or '' if it does not exist yet."""
    made = (each for each in status.resource_claim_statuses or () if each.name == POD_CLAIM_CHANNEL)
    return next((each.resource_claim_name or "" for each in made), "")


def _with_init_containers(
    together: Amounts, init_containers: list[Container], part: _Part
) -> Amounts:
    peak: Amounts = {}
    sidecars: Amounts = {}
    # Init containers start in their order, and each one runs beside the sidecars before it.
    for container in init_containers:
        requests = _parsed(part(container))
        if container.restart_policy == "Always":
            _add(sidecars, requests)
            _raise_to(peak, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(peak, requests)
    # Sidecars continue beside the main containers, so both sums count together.
    _add(together, sidecars)
    _raise_to(together, peak)
    return together


def _requests(container: Container) -> Quantities | None:
    return container.resources.requests


def _parsed(quantities: Quantities | None) -> Amounts:
    return {resource: amount(resource, str(each)) for resource, each in (quantities or {}).items()}


def _add(total: Amounts, more: Amounts) -> None:
    for resource, count in more.items():
        total[resource] = total.get(resource, 0) + count


def _raise_to(floor: Amounts, other: Amounts) -> None:
    for resource, count in other.items():
        floor[resource] = max(floor.get(resource, 0), count)
