"""For each resource name that the CRD takes, a node without it is never chosen."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline_api.resource_names import is_device, is_gpu, is_known
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Policy
from tests.unit.controller.views import (
    foreign_pod,
    job_view,
    node_view,
    pool_view,
    queue_view,
)

DOMAINS = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True)
NAMES = st.one_of(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi"]),
    st.builds("{}/{}".format, DOMAINS, st.from_regex(r"[a-z]{1,12}", fullmatch=True)),
    st.builds("hugepages-{}".format, st.from_regex(r"[1-9][0-9]?(Ki|Mi|Gi)", fullmatch=True)),
).filter(lambda name: is_known(name) and not is_gpu(name))
PLENTY = {"nvidia.com/gpu": 8, "cpu": 96_000, "memory": 1 << 40, "ephemeral-storage": 1 << 40}
ASKED = 2**30


def decided(resource: str, *, taken: bool) -> Decisions:
    """A job asks for some of a resource; node-0 has none of it, or pods of others have it all."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    pool = pool_view()
    if is_device(resource):  # no quota counts it, so the pool must allow it
        pool = msgspec.structs.replace(pool, spec={**pool.spec, "auxiliaryResources": [resource]})
    state.on_pool(None, pool)
    state.on_queue(None, queue_view())
    amounts = {**PLENTY, "pods": 110, resource: 4 * ASKED}
    without = {name: amount for name, amount in amounts.items() if name != resource}
    state.nodes.on_node(None, node_view("node-0", allocatable=amounts if taken else without))
    state.nodes.on_node(None, node_view("node-1", allocatable=amounts))
    if taken:
        pod = foreign_pod("theirs")
        state.on_pod(None, msgspec.structs.replace(pod, requests={resource: 4 * ASKED}))
    amount = f"{ASKED}m" if resource == "cpu" else str(ASKED)
    state.on_job(None, job_view(nodes=1, resources={resource: amount}))
    snapshot = state.scheduling.snapshot(now=0.0)
    pending = tuple(state.scheduling.pending())
    return decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0))


@given(NAMES)
@example("hugepages-2Mi")
@example("attachable-volumes-csi/driver")
def test_a_node_without_a_resource_that_a_job_asks_for_is_never_chosen(resource: str) -> None:
    for taken in (False, True):
        assert [placed.assignment for placed in decided(resource, taken=taken).placed] == [
            ("node-1",)
        ]
