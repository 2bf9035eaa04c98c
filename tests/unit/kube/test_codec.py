"""Views hold what is decided on, bounded, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.kube import codec, storage_codec
from drumline.kube.placement import MAX_CONDITIONS, MAX_VALUES
from drumline.kube.pod_requests import MOST_RESOURCES
from drumline.kube.views import (
    ConditionView,
    ContainerView,
    NodeView,
    ObjectView,
    PodPhase,
    PodView,
    PriorityClassView,
)
from drumline_api.objects import builtin
from drumline_api.overrides import Overrides, OverridesError


def _raw(document: Any) -> bytes:
    return json.dumps(document).encode()


def _metadata(**more: Any) -> dict[str, Any]:
    return {"namespace": "team", "name": "llm-0", "uid": "u1", "resourceVersion": "7"} | more


def test_a_running_pod() -> None:
    document = {
        "metadata": _metadata(
            labels={"drumline.dev/index": "0", "app": "llm"},
            annotations={"drumline.dev/generation": "2", "other/huge": "x" * 1000},
            ownerReferences=[
                {"uid": "by-hand", "kind": "Foo", "name": "foo"},
                {"uid": "job-uid", "kind": "TrainingJob", "name": "llm", "controller": True},
            ],
            managedFields=[{"manager": "drumline"}],
        ),
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "8", "cpu": "2"}}}
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "state": {"running": {"startedAt": "2026-11-01T00:00:00Z"}},
                }
            ],
        },
    }
    assert codec.pod(_raw(document)) == PodView(
        namespace="team",
        name="llm-0",
        uid="u1",
        resource_version="7",
        owner_uid="job-uid",
        labels={"drumline.dev/index": "0"},
        annotations={"drumline.dev/generation": "2"},
        node_name="n1",
        phase=PodPhase.RUNNING,
        pod_ip="10.0.0.9",
        ready=True,
        requests={"nvidia.com/gpu": 8, "cpu": 2000},
        containers=(ContainerView(name="main", ready=True),),
    )


def test_a_failed_pod_under_deletion_tells_why_within_bounds() -> None:
    document = {
        "metadata": _metadata(deletionTimestamp="2026-11-01T00:00:30Z"),
        "spec": {
            "containers": [{"name": "main", "resources": {}}],
            "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "m" * 5000,
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            ],
            "initContainerStatuses": [
                {"name": "proxy", "state": {"terminated": {"exitCode": 143}}},
                {"name": "fetch", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {
                        "terminated": {"exitCode": 1, "reason": "Error", "message": "t" * 9000}
                    },
                }
            ],
        },
    }
    view = codec.pod(_raw(document))
    assert view == PodView(
        namespace="team",
        name="llm-0",
        uid="u1",
        resource_version="7",
        phase=PodPhase.FAILED,
        reason="Evicted",
        message="m" * 1024,
        terminating=True,
        deletion_time="2026-11-01T00:00:30Z",
        disruption_reason="PreemptionByScheduler",
        containers=(
            ContainerView(
                name="main",
                exit_code=1,
                exit_reason="Error",
                termination_message="t" * codec.MAX_TERMINATION_CHARS,
            ),
        ),
        init_containers=(
            ContainerView(name="proxy", is_sidecar=True, exit_code=143),
            ContainerView(name="fetch", waiting_reason="ImagePullBackOff"),
        ),
    )
    assert view.finished


def test_a_node() -> None:
    document = {
        "metadata": {
            "name": "n1",
            "uid": "u",
            "resourceVersion": "9",
            "labels": {"drumline.dev/rack": "r1", "kubernetes.io/hostname": "n1"},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    assert codec.node(_raw(document)) == NodeView(
        name="n1",
        uid="u",
        resource_version="9",
        labels={"drumline.dev/rack": "r1", "kubernetes.io/hostname": "n1"},
        taints=(builtin.Taint(key="gpu", effect="NoSchedule"),),
        unschedulable=True,
        allocatable={"cpu": 64_000, "memory": 2**40, "nvidia.com/gpu": 8, "pods": 110},
        ready=True,
    )


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_is_ready_only_when_it_says_so(status: str) -> None:
    document = {
        "metadata": {"name": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }
    assert not codec.node(_raw(document)).ready


def test_of_a_nodes_conditions_only_bad_conditions_are_kept() -> None:
    since = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "m" * 300},
        {"type": "MemoryPressure", "status": "False"},
        {"type": "KernelDeadlock", "status": "True", "lastTransitionTime": since},
        {"type": "NetworkingReady", "status": "True"},
        {"type": "StorageReady", "status": "Unknown"},
    ]
    document = {"metadata": {"name": "n1"}, "status": {"conditions": conditions}}
    assert codec.node(_raw(document)).conditions == (
        ConditionView(type="Ready", status="False", reason="KubeletNotReady", message="m" * 256),
        ConditionView(type="KernelDeadlock", status="True", since_time=since),
        ConditionView(type="StorageReady", status="Unknown"),
    )


def test_what_announces_a_nodes_end_is_kept() -> None:
    end = "karpenter.sh/nodeclaim-termination-timestamp"
    added = "2026-01-01T00:00:00Z"
    document = {
        "metadata": {"name": "n1", "annotations": {end: "2026-01-01T00:02:00Z", "other": "text"}},
        "spec": {"taints": [{"key": "going", "effect": "NoExecute", "timeAdded": added}]},
    }
    view = codec.node(_raw(document))
    assert view.annotations == {end: "2026-01-01T00:02:00Z"}
    assert view.taints == (builtin.Taint(key="going", effect="NoExecute", time_added=added),)


@pytest.mark.parametrize(
    ("times", "time"),
    [
        ({"deprecatedLastTimestamp": "2026-01-01T00:00:05Z", "eventTime": None}, ":05Z"),
        ({"eventTime": "2026-01-01T00:00:06.000000Z"}, ":06.000000Z"),
        (
            {
                "eventTime": "2026-01-01T00:00:06.000000Z",
                "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:07.000000Z"},
            },
            ":07.000000Z",
        ),
        ({}, ""),
    ],
)
def test_an_event_happened_last_when_its_writer_says(times: dict[str, Any], time: str) -> None:
    document = {
        "metadata": _metadata(),
        "reason": "FailedMount",
        "note": "no" * 1000,
        "type": "Warning",
        **times,
    }
    view = codec.event(_raw(document))
    assert (view.reason, view.message, view.warning) == ("FailedMount", "no" * 512, True)
    assert view.time.endswith(time)
    assert bool(view.time) is bool(time)


def test_a_priority_class() -> None:
    document = {
        "metadata": {"name": "high", "uid": "u", "resourceVersion": "1"},
        "value": 1000,
        "globalDefault": True,
    }
    assert codec.priority_class(_raw(document)) == PriorityClassView(
        name="high", uid="u", resource_version="1", value=1000, global_default=True
    )


def test_an_object_of_ours_keeps_spec_and_status_whole() -> None:
    document = {
        "metadata": _metadata(
            generation=3,
            creationTimestamp="2026-11-01T00:00:00Z",
            annotations={"a": "b", "drumline.dev/c": "d"},
        ),
        "spec": {"nodes": 4, "trainer": {"steps": 10}},
        "status": None,
    }
    assert codec.custom_object(_raw(document)) == ObjectView(
        namespace="team",
        name="llm-0",
        uid="u1",
        resource_version="7",
        generation=3,
        creation_time="2026-11-01T00:00:00Z",
        annotations={"drumline.dev/c": "d"},
        spec={"nodes": 4, "trainer": {"steps": 10}},
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata":{"name":"p"},"spec":{"containers":[],"overhead":{"cpu":"many"}}}',
        b'{"metadata":{"name":1},"spec":{}}',
    ],
)
def test_what_is_no_pod_is_undecodable(raw: bytes) -> None:
    with pytest.raises(codec.Undecodable):
        codec.pod(raw)


def test_of_nesting_without_end_the_rest_is_read() -> None:
    raw = b'{"metadata":{"name":"x"},"spec":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b',"b":1}}'
    view = codec.custom_object(raw)
    assert (view.name, view.spec["b"]) == ("x", 1)


def test_a_document_that_is_cut_off_and_deep_is_undecodable() -> None:
    with pytest.raises(codec.Undecodable):
        codec.custom_object(b'{"metadata":{"name":"x"},"spec":' + b"[" * 10_000)


def test_overrides_of_a_job_stay_text() -> None:
    document = {
        "metadata": _metadata(),
        "spec": {"queue": "q", "trainer": {"steps": 10, "overrides": {"a": [1, {"b": "c"}]}}},
    }
    text = b'{"a": [1, {"b": "c"}]}'
    overrides = Overrides(size_bytes=len(text), text=text)
    view = codec.training_job(_raw(document))
    assert codec.spec_of(view) == {"queue": "q", "trainer": {"steps": 10, "overrides": overrides}}


def test_overrides_over_the_limit_are_not_kept() -> None:
    many = b",".join([b"[]"] * 480_000)
    raw = b'{"metadata":{"name":"x"},"spec":{"trainer":{"overrides":{"x":[%b]}}}}' % many
    overrides = codec.spec_of(codec.training_job(raw))["trainer"]["overrides"]
    assert overrides == Overrides(size_bytes=len(many) + 8, text=b"")


def test_equal_specs_of_jobs_are_one_text() -> None:
    spec = {"queue": "q", "trainer": {"overrides": {"a": 1}}}
    views = [
        codec.training_job(_raw({"metadata": _metadata(), "spec": spec, "status": {"step": step}}))
        for step in (1, 2)
    ]
    assert views[0].spec_json is views[1].spec_json
    assert [codec.status_of(view) for view in views] == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("half", [b'"status":[]', b'"spec":{"trainer":7}', b'"spec":{"nodes":1e}'])
def test_a_job_of_which_a_half_cannot_be_decoded_is_undecodable(half: bytes) -> None:
    with pytest.raises(codec.Undecodable):
        codec.training_job(b'{"metadata":{"name":"x"},%b}' % half)


@pytest.mark.parametrize("depth", [20, 900, 985, 10_000])
def test_deep_overrides_are_named_and_the_job_has_its_name(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    raw = b'{"metadata":{"name":"x"},"spec":{"trainer":{"overrides":{"x":%b}}}}' % deep
    view = codec.training_job(raw)
    with pytest.raises(OverridesError, match=r"levels deep|over 16384"):
        codec.spec_of(view)["trainer"]["overrides"].decoded()
    assert view.name == "x"


EVIL = "\x1b]0;owned\x07 \u202egnp.exe\u202c\u2028 done"


def test_what_a_program_says_steers_no_terminal() -> None:
    ended = {"exitCode": 1, "reason": EVIL, "message": EVIL}
    states = [
        {"name": "a", "state": {"waiting": {"reason": EVIL, "message": EVIL}}},
        {"name": "b", "state": {"terminated": ended}},
    ]
    status = {"reason": EVIL, "message": EVIL, "containerStatuses": states}
    view = codec.pod(_raw({"metadata": _metadata(), "spec": {}, "status": status}))
    waiting, terminated = view.containers
    said = [view.reason, view.message, waiting.waiting_reason, waiting.waiting_message]
    assert {*said, terminated.exit_reason} == {"]0;owned gnp.exe done"}
    assert terminated.termination_message.isprintable()


def test_what_a_node_s_component_says_steers_no_terminal() -> None:
    condition = {"type": "Odd", "status": "True", "reason": EVIL, "message": EVIL}
    view = codec.node(_raw({"metadata": _metadata(), "status": {"conditions": [condition]}}))
    assert {view.conditions[0].reason, view.conditions[0].message} == {"]0;owned gnp.exe done"}


def test_what_the_pods_of_a_gang_have_in_common_is_kept_once() -> None:
    raw = (
        b'{"metadata":{"namespace":"team-a","name":"j-0-g1","uid":"u","resourceVersion":"1",'
        b'"labels":{"drumline.dev/job":"a-job"},'
        b'"ownerReferences":[{"uid":"the-owner","controller":true}]},'
        b'"spec":{"nodeName":"node-of-both","containers":[]}}'
    )
    first, second = codec.pod(raw), codec.pod(raw)
    assert first.namespace is second.namespace
    assert first.owner_uid is second.owner_uid
    assert first.node_name is second.node_name
    assert first.labels["drumline.dev/job"] is second.labels["drumline.dev/job"]
    assert list(map(id, first.labels)) == list(map(id, second.labels))


def test_texts_with_our_prefix_that_we_do_not_use_are_not_kept() -> None:
    many = {f"drumline.dev/x{number}": "y" for number in range(1000)}
    texts = {**many, "drumline.dev/queue": "q"}
    view = codec.pod(_raw({"metadata": _metadata(labels=texts, annotations=texts), "spec": {}}))
    assert view.labels == view.annotations == {"drumline.dev/queue": "q"}


def test_a_mirror_pod_is_static() -> None:
    mirror = {"kubernetes.io/config.mirror": "0a1b"}
    for texts in ({}, mirror):
        pod = {"metadata": _metadata(annotations=texts), "spec": {}}
        assert codec.pod(_raw(pod)).is_static == bool(texts)


def test_long_texts_of_tenants_are_not_kept() -> None:
    """40,000 pods with 256 KiB of annotations each would fill any memory."""
    long = {"drumline.dev/queue": "q" * 4097, "drumline.dev/pod-group-size": "3"}
    view = codec.pod(_raw({"metadata": _metadata(annotations=long), "spec": {}}))
    assert view.annotations == {"drumline.dev/pod-group-size": "3"}
    selected = {"volume.kubernetes.io/selected-node": "n" * 9000}
    claim = {"metadata": _metadata(annotations=selected), "spec": {}}
    assert len(storage_codec.persistent_volume_claim(_raw(claim)).selected_node) == 253


def test_a_pod_with_thousands_of_resources_keeps_few_and_holds_its_node() -> None:
    """Kubelets ignore resources that their node lacks, so the pod runs."""
    many = {f"a{number}.com/x": "1" for number in range(5000)}
    requests = {**many, "cpu": "1", "nvidia.com/gpu": "8", "memory": "1"}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    view = codec.pod(_raw({"metadata": _metadata(), "spec": spec}))
    assert len(view.requests) == MOST_RESOURCES
    assert view.requests["nvidia.com/gpu"] == 8
    assert view.requests["cpu"] > 2**48


@pytest.mark.parametrize("kind", ["labels", "terms", "expressions", "values", "tolerations"])
def test_conditions_of_a_pod_that_waits_for_a_queue_are_bounded(kind: str) -> None:
    def spec(count: int, **more: Any) -> dict[str, Any]:
        exists = {"key": "k", "operator": "Exists"}
        names = [str(number) for number in range(count)]
        by_kind: dict[str, list[Any]] = {
            "terms": [{}] * count,
            "expressions": [{"matchExpressions": [exists] * (count - 1)}],
            "values": [{"matchExpressions": [{**exists, "operator": "In", "values": names}]}],
        }
        terms = by_kind.get(kind, [])
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return {
            "schedulingGates": [{"name": "drumline.dev/queue"}],
            "nodeSelector": dict.fromkeys(names, "") if kind == "labels" else None,
            "affinity": {"nodeAffinity": required},
            "tolerations": [{"operator": "Exists"}] * count if kind == "tolerations" else None,
            **more,
        }

    def view(spec: dict[str, Any]) -> PodView:
        return codec.pod(_raw({"metadata": _metadata(), "spec": spec}))

    most = MAX_VALUES if kind == "values" else MAX_CONDITIONS
    with pytest.raises(codec.Undecodable, match=str(most)):
        view(spec(most + 1))
    # The pods of a group are equal, and a tenant may create 10,000 of them.
    first, second = view(spec(most)).gate, view(spec(most)).gate
    assert first is not None
    assert second is not None
    assert first.placement is second.placement
    # A pod without the gate does not wait here, so its conditions have no limit.
    assert view(spec(most + 1, schedulingGates=None)).gate is None


NATIVE = {"spec": {"schedulingGroup": {"podGroupName": "ring-0"}, "containers": []}}
OLDER = {"spec": {"workloadRef": {"name": "ring", "podGroup": "w", "podGroupReplicaKey": "1"}}}


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        (NATIVE, "ring-0"),
        (OLDER, "ring-w-1"),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "plugin"}}, "plugin"),
        ({"labels": {"drumline.dev/pod-group": "crew"}}, "crew"),
        ({"annotations": {"scheduling.k8s.io/group-name": "volcano"}}, "volcano"),
        ({"annotations": {"pod-group-name": "kai"}}, "kai"),
        ({"labels": {"app": "x"}}, ""),
    ],
)
def test_the_group_of_a_pod_whatever_scheduler_it_has(fields: dict[str, Any], group: str) -> None:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"}
    spec = fields.get("spec", {"containers": []})
    named = {key: fields[key] for key in ("labels", "annotations") if key in fields}
    document = {"metadata": {**metadata, **named}, "spec": spec, "status": {}}
    assert codec.pod(_raw(document)).group == group


def test_the_claims_that_a_pod_mounts_its_own_ones_included() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = {"nodeName": "n", "volumes": volumes}
    document = {"metadata": _metadata(), "spec": spec, "status": {}}
    assert codec.pod(_raw(document)).claims == ("shared", "llm-0-scratch")
    document["spec"] = {"volumes": volumes}
    assert codec.pod(_raw(document)).claims == ()
    document["spec"] = {"volumes": volumes, "schedulingGates": [{"name": "drumline.dev/queue"}]}
    assert codec.pod(_raw(document)).claims == ("shared", "llm-0-scratch")
    many = [{"name": "x", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(999)]
    document["spec"] = {**spec, "volumes": many}
    assert len(codec.pod(_raw(document)).claims) == 128


def test_the_limits_of_the_csi_drivers_of_a_node() -> None:
    drivers = [
        {"name": "disks.example.com", "nodeID": "n", "allocatable": {"count": 25}},
        {"name": "files.example.com", "nodeID": "n"},
        {"name": "none.example.com", "nodeID": "n", "allocatable": {}},
        {"name": "zero.example.com", "nodeID": "n", "allocatable": {"count": 0}},
    ]
    limits = storage_codec.csi_node(
        _raw({"metadata": _metadata(), "spec": {"drivers": drivers}})
    ).limits
    assert limits == (("disks.example.com", 25), ("zero.example.com", 0))
    assert (
        storage_codec.csi_node(_raw({"metadata": _metadata(), "spec": {"drivers": None}})).limits
        == ()
    )


def test_the_labels_of_the_topology_of_each_driver_of_a_node() -> None:
    drivers = [
        {"name": "disks.example.com", "nodeID": "n", "topologyKeys": ["disks/zone"]},
        {"name": "files.example.com", "nodeID": "n", "topologyKeys": None},
    ]
    view = storage_codec.csi_node(_raw({"metadata": _metadata(), "spec": {"drivers": drivers}}))
    assert view.topology == (("disks.example.com", ("disks/zone",)), ("files.example.com", ()))


@pytest.mark.parametrize(
    ("spec", "attaches"),
    [({}, True), ({"attachRequired": True}, True), ({"attachRequired": False}, False)],
)
def test_a_csi_driver_attaches_its_volumes_unless_it_says_otherwise(
    spec: dict[str, Any], attaches: bool
) -> None:
    assert (
        storage_codec.csi_driver(_raw({"metadata": _metadata(), "spec": spec})).attaches == attaches
    )


@pytest.mark.parametrize(
    ("spec", "status", "sharing", "bound"),
    [
        ({}, {}, "Any", False),
        ({"volumeName": "pv"}, {}, "Any", True),
        ({"volumeName": "pv"}, {"phase": "Pending"}, "Any", False),
        ({"accessModes": ["ReadWriteOnce"]}, {"phase": "Bound"}, "OneNode", True),
        ({"accessModes": ["ReadWriteOncePod"]}, {"phase": "Lost"}, "OnePod", False),
        ({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}, {}, "Any", False),
        ({"accessModes": ["ReadWriteOnce"]}, {"accessModes": ["ReadWriteMany"]}, "Any", False),
    ],
)
def test_a_claim_has_the_access_modes_of_its_volume(
    spec: dict[str, Any], status: dict[str, Any], sharing: str, bound: bool
) -> None:
    claim = {"metadata": _metadata(), "spec": spec, "status": status}
    view = storage_codec.persistent_volume_claim(_raw(claim))
    assert (view.sharing, view.bound) == (sharing, bound)
    assert (view.lost, view.is_block) == (status.get("phase") == "Lost", False)


@pytest.mark.parametrize(("spec", "name"), [({}, "old"), ({"storageClassName": "new"}, "old")])
def test_the_older_name_of_a_claims_class_counts_first(spec: dict[str, Any], name: str) -> None:
    old = {"volume.beta.kubernetes.io/storage-class": "old"}
    claim = {"metadata": _metadata(annotations=old), "spec": spec}
    view = storage_codec.persistent_volume_claim(_raw(claim))
    assert (view.storage_class, view.names_class) == (name, True)


def test_a_volume_of_a_csi_driver_keeps_its_identity() -> None:
    csi = {"driver": "disks.example.com", "volumeHandle": "vol-1", "fsType": "ext4"}
    view = storage_codec.persistent_volume(_raw({"metadata": _metadata(), "spec": {"csi": csi}}))
    assert (view.driver, view.handle) == ("disks.example.com", "vol-1")
    long = [csi | {"volumeHandle": f"/{'a' * 300}/{name}"} for name in ("disk-1", "disk-2")]
    volumes = [
        storage_codec.persistent_volume(_raw({"metadata": _metadata(), "spec": {"csi": each}}))
        for each in long
    ]
    assert len({each.handle for each in volumes}) == 2
    assert {len(each.handle) for each in volumes} == {256}
    assert storage_codec.persistent_volume(_raw({"metadata": _metadata(), "spec": {}})).driver == ""
