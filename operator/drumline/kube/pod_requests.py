"""What a pod takes from its node, summed as kube-scheduler sums it.

Containers run together, so their requests add up; init containers run one after the other, so the
largest counts; an init container that restarts always (a sidecar, KEP-753) runs beside all that
come after it. Requests of the pod as a whole (KEP-2837) replace the sum for the resources they
name. The runtime's overhead comes on top. An in-place resize counts by the spec, not by what the
kubelet has actuated yet.
"""

from __future__ import annotations

from drumline.kube.quantity import amount
from drumline_api.base import POD_CLAIM_CHANNEL, RESOURCE_CHANNEL
from drumline_api.objects.builtin import Container, PodSpec, PodStatus, Quantities

Amounts = dict[str, int]


def pod_requests(spec: PodSpec) -> Amounts:
    """The pod's requests by resource name: CPU in thousandths, all others in whole units.

    A claim for a channel of a ComputeDomain is none for Kubernetes; it counts as one here.

    Raises:
        ValueError: One of them is no quantity.
    """
    together: Amounts = {}
    for container in spec.containers:
        _add(together, _requests(container))
    if spec.init_containers:
        together = _with_init_containers(together, spec.init_containers)
    if spec.resources is not None:
        together |= _parsed(spec.resources.requests)
    if spec.overhead:
        _add(together, _parsed(spec.overhead))
    if any(claim.name == POD_CLAIM_CHANNEL for claim in spec.resource_claims or ()):
        together[RESOURCE_CHANNEL] = 1
    return together


def channel_claim(status: PodStatus) -> str:
    """The name of the claim that was made for the pod's channel; empty: none yet."""
    made = (each for each in status.resource_claim_statuses or () if each.name == POD_CLAIM_CHANNEL)
    return next((each.resource_claim_name or "" for each in made), "")


def _with_init_containers(together: Amounts, init_containers: list[Container]) -> Amounts:
    peak: Amounts = {}
    sidecars: Amounts = {}
    for container in init_containers:
        requests = _requests(container)
        if container.restart_policy == "Always":
            _add(sidecars, requests)
            _raise_to(peak, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(peak, requests)
    _add(together, sidecars)
    _raise_to(together, peak)
    return together


def _requests(container: Container) -> Amounts:
    return _parsed(container.resources.requests)


def _parsed(quantities: Quantities | None) -> Amounts:
    return {resource: amount(resource, str(each)) for resource, each in (quantities or {}).items()}


def _add(total: Amounts, more: Amounts) -> None:
    for resource, count in more.items():
        total[resource] = total.get(resource, 0) + count


def _raise_to(floor: Amounts, other: Amounts) -> None:
    for resource, count in other.items():
        floor[resource] = max(floor.get(resource, 0), count)
