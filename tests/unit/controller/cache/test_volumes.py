"""From which nodes the claims of a job can be used, as events tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from drumline.controller.informers.volumes import VolumeCache
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import (
    ClaimView,
    CsiDriverView,
    CsiNodeView,
    ExpressionView,
    Sharing,
    StorageClassView,
    VolumeView,
)
from drumline_api.gpupool import GpuPoolSpec
from tests.builders import a_job, admitted
from tests.texts import missing
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)
from tests.unit.scheduler.builders import cluster, gang, node, run

MOUNTS = {
    "image": "any:1",
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
    "volumeMounts": [{"name": "d", "mountPath": "/data"}],
}
JOB = a_job(template=MOUNTS)
CLAIM = ClaimView(namespace=JOB.namespace, name="data", uid="c", resource_version="1")
BOUND = structs.replace(CLAIM, volume="pv")
ZONE = ((ExpressionView(key="zone", operator="In", values=("a",)),),)
VOLUME = VolumeView(name="pv", uid="v", resource_version="1", affinity=ZONE)


def names(cache: VolumeCache) -> list[str]:
    return [reach.name for reach in cache.reach_of(JOB) if reach.terms or reach.driver]


def test_a_claim_restricts_its_job_from_when_it_is_bound_until_its_volume_is_gone() -> None:
    cache = VolumeCache()
    assert not cache.on_claim(None, CLAIM)
    assert not cache.is_known
    assert cache.on_volume(None, VOLUME)
    assert (cache.is_known, names(cache)) == (True, [])
    assert cache.on_claim(CLAIM, BOUND)
    assert names(cache) == ["volume pv of claim data"]
    assert not cache.on_claim(BOUND, structs.replace(BOUND, resource_version="2"))
    assert cache.on_volume(VOLUME, None)
    assert (cache.is_known, names(cache)) == (False, [])


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ("a",), True),
        ("Near", ("a",), False),
        ("", ("a",), False),
        ("NotIn", ("b",), True),
        ("NotIn", (), False),
        ("Exists", (), True),
        ("Exists", ("a",), False),
        ("DoesNotExist", ("a",), False),
        ("Gt", ("1", "2"), False),
    ],
)
def test_a_requirement_that_cannot_be_evaluated_fits_no_node(
    operator: str, values: tuple[str, ...], fits: bool
) -> None:
    """kube-scheduler and kubelet refuse the volume there, so a pod would wait for ever."""
    cache, each = VolumeCache(), ExpressionView(key="zone", operator=operator, values=values)
    cache.on_volume(None, structs.replace(VOLUME, affinity=((each,),)))
    cache.on_claim(None, BOUND)
    snapshot = cluster(replace(node("n0", "r0"), labels={"zone": "a"}))
    decisions = run(snapshot, gang("w", volumes=cache.reach_of(JOB)))
    assert bool(decisions.placed) == fits
    if not fits:
        assert not missing(decisions.blocked[0].message, "volume pv", "cannot be evaluated: zone")


def test_a_term_that_can_be_evaluated_counts_beside_one_that_cannot() -> None:
    cache, broken = VolumeCache(), ExpressionView(key="zone", operator="Near", values=("a",))
    cache.on_volume(None, structs.replace(VOLUME, affinity=((broken,), *ZONE)))
    cache.on_claim(None, BOUND)
    snapshot = cluster(replace(node("n0", "r0"), labels={"zone": "a"}))
    assert run(snapshot, gang("w", volumes=cache.reach_of(JOB))).placed


def test_a_claim_of_another_namespace_restricts_nothing() -> None:
    cache = VolumeCache()
    cache.on_volume(None, VOLUME)
    cache.on_claim(None, structs.replace(BOUND, namespace="other"))
    assert names(cache) == []


def test_a_class_restricts_claims_that_are_not_bound() -> None:
    cache = VolumeCache()
    assert cache.on_storage_class(None, StorageClassView(name="zonal", topologies=ZONE))
    cache.on_claim(None, structs.replace(CLAIM, storage_class="zonal"))
    assert names(cache) == ["storage class zonal of claim data"]
    cache.on_claim(CLAIM, structs.replace(BOUND, storage_class="zonal"))
    assert names(cache) == []


def test_a_new_default_class_restricts_claims_that_name_none() -> None:
    cache, plain = VolumeCache(), StorageClassView(name="zonal", topologies=ZONE)
    cache.on_storage_class(None, plain)
    cache.on_claim(None, structs.replace(CLAIM, names_class=False, bound=False))
    assert names(cache) == []
    assert cache.on_storage_class(plain, structs.replace(plain, is_default=True))
    assert names(cache) == ["storage class zonal of claim data"]


def test_of_equally_old_default_classes_the_first_name_counts() -> None:
    """The rule of the API server for two classes of one manifest (GetDefaultClass)."""
    cache = VolumeCache()
    for name, time in [("b", "T1"), ("a", "T1"), ("c", "T0")]:
        view = StorageClassView(name=name, is_default=True, creation_time=time)
        cache.on_storage_class(None, view)
    assert cache.default_class() == "a"
    newest = StorageClassView(name="c", is_default=True, creation_time="T2")
    cache.on_storage_class(structs.replace(newest, creation_time="T0"), newest)
    assert cache.default_class() == "c"


def test_the_places_of_a_job_attach_its_volumes_before_its_pods_do() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    state.nodes.on_node(None, node_view())
    state.volumes.csi.on_node(None, CsiNodeView(name="node-0", limits=(("disks", 1),)))
    state.volumes.on_volume(None, structs.replace(VOLUME, affinity=(), driver="disks", handle="h"))
    state.volumes.on_claim(None, structs.replace(BOUND, namespace="team"))
    template = {"nodes": 1, "template": MOUNTS}
    waits = job_view(**template)
    runs = job_view(version=2, status=assignment("node-0"), **template)
    ended = {**assignment("node-0"), "finishedAt": "2026-11-28T10:00:00Z"}
    over = job_view(version=3, status=ended, **template)

    def attached() -> frozenset[str]:
        (node,) = state.scheduling.snapshot(now=0.0).nodes
        return node.attached[0].volumes

    state.on_job(None, waits)
    assert attached() == frozenset()
    state.on_job(waits, runs)
    assert attached() == {"h"}
    pod = structs.replace(pod_view(), claims=("data",))
    state.on_pod(None, pod)
    state.on_job(runs, over)
    assert attached() == {"h"}  # its pod still runs
    state.on_pod(pod, None)
    assert attached() == frozenset()


def test_a_list_that_shows_the_next_claim_of_a_volume_first_keeps_it() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    volume = structs.replace(VOLUME, affinity=(), driver="disks", handle="h")
    state.volumes.csi.on_node(None, CsiNodeView(name="node-0", limits=(("disks", 1),)))
    before = structs.replace(BOUND, name="z")
    state.volumes.on_claim(None, before)
    state.volumes.on_claim(None, BOUND)
    state.volumes.on_claim(before, structs.replace(before, volume=""))
    pod = structs.replace(pod_view(), namespace=JOB.namespace, claims=("data",))
    state.volumes.on_pod(None, pod)
    state.volumes.take_changed()
    state.volumes.on_volume(None, volume)
    assert state.volumes.take_changed() == {"node-0"}


ALONE = structs.replace(BOUND, sharing=Sharing.ONE_NODE)


def test_the_pods_and_places_of_a_job_do_not_keep_it_from_its_own_claim() -> None:
    cache = VolumeCache()
    assert cache.on_claim(None, ALONE)
    own = pod_view(job_uid=JOB.uid, node_name="node-0", claims=("data",), uid="p0")
    cache.on_pod(None, own)
    assert names(cache) == []
    one_pod = structs.replace(ALONE, sharing=Sharing.ONE_POD)
    assert cache.on_claim(ALONE, one_pod)
    assert cache.obstacle_of(JOB) is None
    other = structs.replace(own, owner_uid="", uid="p1", name="eval")
    cache.on_pod(None, other)
    assert cache.obstacle_of(JOB) is not None
    assert cache.on_claim(one_pod, ALONE)
    assert names(cache) == ["claim data (ReadWriteOnce), which pod eval uses on node-0"]
    cache.on_pod(other, None)
    assert (names(cache), cache.obstacle_of(JOB)) == ([], None)


def test_only_a_claim_that_several_jobs_name_makes_their_gangs_differ() -> None:
    """Thousands of jobs with a claim of their own are one question for the scheduler."""
    cache, other = VolumeCache(), replace(JOB, uid="other", name="other")
    cache.on_claim(None, ALONE)
    cache.on_job(None, JOB)
    assert cache.reach_of(JOB) == ()
    cache.on_job(None, other)
    assert [reach.claim for reach in cache.reach_of(JOB)] == ["team/data"]
    moved = replace(other, spec=a_job().spec)
    cache.on_job(other, moved)
    assert cache.reach_of(JOB) == ()
    cache.on_job(moved, other)
    assert len(cache.reach_of(JOB)) == 1
    cache.on_job(other, None)
    cache.forget(other.uid)
    assert cache.reach_of(JOB) == ()


def test_the_places_of_another_job_use_a_claim_before_its_pods_exist() -> None:
    cache = VolumeCache()
    cache.on_claim(None, ALONE)
    other = admitted(replace(JOB, uid="other", name="other"), nodes=("node-1",))
    cache.on_job(None, other)
    assert names(cache) == [f"claim data (ReadWriteOnce), which job {other.key} uses on node-1"]
    cache.on_job(other, None)
    assert names(cache) == []


def test_a_driver_that_attaches_nothing_serves_several_nodes() -> None:
    cache = VolumeCache()
    cache.on_claim(None, ALONE)
    volume = VolumeView(name="pv", uid="v", resource_version="1", driver="files")
    cache.on_volume(None, volume)
    assert cache.serves_one_node(JOB.namespace, "data")
    driver = CsiDriverView(name="files", attaches=False)
    assert cache.csi.on_driver(None, driver)
    assert not cache.serves_one_node(JOB.namespace, "data")
    assert cache.csi.on_driver(driver, None)
    assert cache.serves_one_node(JOB.namespace, "data")
    assert not cache.serves_one_node(JOB.namespace, "unknown")


def test_a_job_goes_nowhere_while_its_claim_or_volume_cannot_be_read() -> None:
    cache, unread = VolumeCache(), structs.replace(BOUND, unread=True)
    volume = structs.replace(VOLUME, affinity=(), unread=True)
    assert cache.on_claim(None, unread)
    assert cache.unbound_of(JOB) == "claim data cannot be read"
    (blocked,) = run(cluster(node("n0", "r0")), gang("w", volumes=cache.reach_of(JOB))).blocked
    assert not missing(blocked.message, "unreadable", "claim data")
    assert cache.on_claim(unread, BOUND)
    assert (names(cache), cache.unbound_of(JOB), cache.is_known) == ([], "", False)
    assert cache.on_volume(None, volume)
    (blocked,) = run(cluster(node("n0", "r0")), gang("w", volumes=cache.reach_of(JOB))).blocked
    assert not missing(blocked.message, "unreadable volume pv of claim data")
    assert cache.on_volume(volume, structs.replace(volume, unread=False, resource_version="2"))
    assert (names(cache), cache.is_known) == ([], False)


def profiled(claim: str, **selector: str) -> GpuPoolSpec:
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]
    spec = {"nodeSelector": selector, "podProfile": {"volumes": volumes}}
    return GpuPoolSpec.model_validate(spec)


def test_the_claims_of_a_profile_are_those_of_a_job_that_names_its_pool() -> None:
    cache = VolumeCache()
    job = a_job(gpuPool="h100")
    cache.on_volume(None, VOLUME)
    cache.on_claim(None, ALONE)
    assert cache.reach_of(job) == ()
    cache.on_pools({"h100": profiled("data", gpu="h100"), "a100": profiled("a", gpu="a100")})
    (reach,) = cache.reach_of(job)
    assert reach.name == "volume pv of claim data"
    elsewhere = replace(job, spec=a_job(gpuPool="a100").spec)
    # The operator asks the API server, and a refusal counts. `decide` has all claims there are.
    assert cache.unbound_of(elsewhere) == ""
    cache.has_all_claims = True
    assert cache.unbound_of(elsewhere) == 'persistentvolumeclaim "a" not found'
    # Its places use the claim before its pods exist.
    other = admitted(replace(job, uid="other", name="other"), nodes=("node-1",))
    cache.on_job(None, other)
    assert f"claim data (ReadWriteOnce), which job {other.key} uses on node-1" in [
        each.name for each in cache.reach_of(job)
    ]
    cache.on_job(other, None)
    cache.on_pools({})
    assert cache.reach_of(job) == ()


@pytest.mark.parametrize(
    ("pools", "places"),
    [(None, {"n1", "n2"}), (["h100", "a100"], {"n1", "n2"}), (["a100"], {"n0", "n1", "n2"})],
)
def test_a_job_for_several_pools_avoids_only_the_nodes_that_its_pool_cannot_mount(
    pools: list[str] | None, places: set[str]
) -> None:
    cache = VolumeCache()
    cache.on_volume(None, VOLUME)
    cache.on_claim(None, BOUND)
    cache.on_pools({"h100": profiled("data", gpu="h100")})
    far, near = {"gpu": "h100", "zone": "b"}, {"gpu": "h100", "zone": "a"}
    nodes = (
        replace(node("n0", "r0"), labels=far),
        replace(node("n1", "r0"), labels=near),
        replace(node("n2", "r0"), labels={"gpu": "a100", "zone": "b"}),
    )
    reach = cache.reach_of(a_job(gpuPools=pools))
    accepts = {
        each.name for each in nodes if run(cluster(each), gang("w", volumes=reach, nodes=1)).placed
    }
    assert accepts == places
