"""What the writes do at a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.kube import codec, errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import CONFIG_MAPS, NODES, PODS, TRAINING_JOBS, Resource
from tests.integration.kube.conftest import make_namespace


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    """A pod that no scheduler touches."""
    return {
        "metadata": {"name": name} | metadata,
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "any"}],
        },
    }


async def test_a_created_object_is_read_back_and_deleted(
    client: KubeClient, namespace: str
) -> None:
    written = await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    view = codec.pod(await reads.get(client, PODS, namespace=namespace, name="p"))
    assert (view.namespace, view.name) == (namespace, "p")
    assert writes.Written(view.uid, view.resource_version) == written
    await writes.delete(client, PODS, namespace=namespace, name="p", uid=written.uid)
    with pytest.raises(errors.NotFound):
        await reads.get(client, PODS, namespace=namespace, name="p")


async def test_refusals_are_typed(client: KubeClient, namespace: str) -> None:
    await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    with pytest.raises(errors.AlreadyExists, match='pods "p" already exists'):
        await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        await writes.create(client, PODS, namespace=namespace, body=pod("NOT A NAME"))
    with pytest.raises(errors.NotFound):
        await writes.delete(client, PODS, namespace=namespace, name="q", uid=None)
    with pytest.raises(errors.Conflict, match="UID in the precondition"):
        await writes.delete(client, PODS, namespace=namespace, name="p", uid="another")
    unserved = Resource(group="none.dev", version="v1", plural="x", kind="X", namespaced=True)
    with pytest.raises(errors.NotFound):
        await writes.create(client, unserved, namespace=namespace, body=pod("p"))


async def test_pod_security_refuses_with_its_own_words(client: KubeClient) -> None:
    strict = await make_namespace(client, **{"pod-security.kubernetes.io/enforce": "restricted"})
    with pytest.raises(errors.Forbidden, match="violates PodSecurity"):
        await writes.create(client, PODS, namespace=strict, body=pod("p"))


async def test_a_stale_status_is_refused_whole(client: KubeClient, namespace: str) -> None:
    first = await writes.create(client, PODS, namespace=namespace, body=pod("p"))

    async def write(version: str, message: str) -> writes.Written:
        return await writes.replace_status(
            client,
            PODS,
            namespace=namespace,
            name="p",
            uid=first.uid,
            resource_version=version,
            status={"phase": "Pending", "message": message},
        )

    second = await write(first.resource_version, "new leader")
    with pytest.raises(errors.Conflict):
        await write(first.resource_version, "old leader")
    view = codec.pod(await reads.get(client, PODS, namespace=namespace, name="p"))
    assert (view.message, view.resource_version) == ("new leader", second.resource_version)


async def test_a_status_meant_for_a_predecessor_is_refused(
    client: KubeClient, namespace: str
) -> None:
    first = await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    await writes.delete(client, PODS, namespace=namespace, name="p", uid=first.uid)
    await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    with pytest.raises(errors.Conflict):
        await writes.replace_status(
            client,
            PODS,
            namespace=namespace,
            name="p",
            uid=first.uid,
            resource_version=first.resource_version,
            status={"phase": "Running"},
        )


async def test_replacing_a_status_drops_fields(client: KubeClient, namespace: str) -> None:
    created = await writes.create(client, PODS, namespace=namespace, body=pod("p"))
    version = created.resource_version
    for status in ({"phase": "Running", "message": "m", "reason": "r"}, {"phase": "Running"}):
        written = await writes.replace_status(
            client,
            PODS,
            namespace=namespace,
            name="p",
            uid=created.uid,
            resource_version=version,
            status=status,
        )
        version = written.resource_version
    view = codec.pod(await reads.get(client, PODS, namespace=namespace, name="p"))
    assert (view.phase, view.message, view.reason) == ("Running", "", "")


async def test_a_gang_is_created_at_once_with_an_outcome_for_each_pod(
    client: KubeClient, namespace: str
) -> None:
    await writes.create(client, PODS, namespace=namespace, body=pod("g-3"))
    names = [f"g-{index}" for index in range(40)]
    outcomes = await writes.create_many(
        client, PODS, namespace=namespace, bodies=[pod(name) for name in names]
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [errors.AlreadyExists if i == 3 else writes.Written for i in range(40)]
    views = [codec.pod(raw) for raw in await reads.list_all(client, PODS, namespace=namespace)]
    uids = {view.name: view.uid for view in views}
    created = {
        name: outcome.uid
        for name, outcome in zip(names, outcomes, strict=True)
        if isinstance(outcome, writes.Written)
    }
    assert {name: uids[name] for name in created} == created
    assert set(uids) == set(names)


async def test_a_gang_is_deleted_in_a_single_request_by_its_label(
    client: KubeClient, namespace: str
) -> None:
    bodies = [pod(f"a-{i}", labels={"gang": "a"}) for i in range(5)] + [pod("b", labels={})]
    await writes.create_many(client, PODS, namespace=namespace, bodies=bodies)
    await writes.delete_collection(
        client, PODS, namespace=namespace, label_selector="gang=a", grace_seconds=0
    )
    left = await reads.list_all(client, PODS, namespace=namespace)
    assert [codec.pod(raw).name for raw in left] == ["b"]
    with pytest.raises(ValueError, match="every object"):
        await writes.delete_collection(client, PODS, namespace=namespace, label_selector="")


async def test_pages_hold_a_single_version_of_everything(
    client: KubeClient, namespace: str
) -> None:
    bodies = [{"metadata": {"name": f"c-{i:02}"}} for i in range(25)]
    await writes.create_many(client, CONFIG_MAPS, namespace=namespace, bodies=bodies)
    pages = []
    async for page in reads.list_pages(client, CONFIG_MAPS, namespace=namespace, limit=10):
        pages.append(page)
        late = {"metadata": {"name": f"late-{len(pages)}"}}
        await writes.create(client, CONFIG_MAPS, namespace=namespace, body=late)
    names = [codec.custom_object(raw).name for page in pages for raw in page.items]
    assert len({page.resource_version for page in pages}) == 1
    assert [name for name in names if name.startswith("c-")] == [f"c-{i:02}" for i in range(25)]
    assert not [name for name in names if name.startswith("late")]


async def test_paths_that_would_mean_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path(namespace="a", name="n")
    with pytest.raises(ValueError, match="without a namespace"):
        PODS.path(name="p")
    with pytest.raises(ValueError, match="not a valid"):
        PODS.path(namespace="..", name="p")
    assert PODS.path(namespace="a", name="../b") == "/api/v1/namespaces/a/pods/..%2Fb"
    assert TRAINING_JOBS.path(namespace="a", name="j", subresource="status") == (
        "/apis/drumline.dev/v1alpha1/namespaces/a/trainingjobs/j/status"
    )
