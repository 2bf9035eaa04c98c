"""Read the claims and CSI drivers of a job, and select a node for claims that wait for a pod.

kube-scheduler does this for the pods that it binds. Drumline binds its own pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from drumline.kube import reads, storage_codec, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden, NotFound
from drumline.kube.kinds import CSI_DRIVERS, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES
from drumline.kube.views import ClaimView, Sharing
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.claims import (
    ClaimFacts,
    ClaimReady,
    ClaimUnusable,
    SelectNode,
    StorageClassFacts,
    claim_names,
    claim_step,
    inline_drivers,
    inline_trouble,
    missing_claim,
    pod_claim_classes,
    pod_claim_trouble,
)
from drumline.telemetry import logs
from drumline_api.base import ANNOTATION_SELECTED_NODE

log = logs.get("drumline.controller.reconciler.claims")


ServesOneNode = Callable[[str, str], bool]
"""Returns whether pods of one node only can use a claim, by its namespace and name."""


def any_node(namespace: str, name: str) -> bool:
    """Assume that pods of several nodes can use a claim."""
    del namespace, name
    return False


async def prepare_claims(
    client: KubeClient,
    job: Job,
    *,
    serves_one_node: ServesOneNode = any_node,
    of_pods: Iterable[str] = (),
    default_class: str = "",
    binds: bool = True,
) -> ClaimUnusable | None:
    """Prepare the job's claims. Return why its pods cannot use one of them, or None.

    With `binds=False` nothing is written: the claims are only read. It takes one read for each
    claim, class or CSI driver that the job names, in each generation. If RBAC forbids a read,
    nothing is done, and the kubelet reports a claim that does not work.

    Args:
        client: writes as the operator.
        job: the job with its present status.
        serves_one_node: tells a claim that several nodes cannot use at the same time.
        of_pods: further claims that its pods mount, such as those of the pool's podProfile.
        default_class: name of the cluster's default StorageClass, or '' if it is not known.
        binds: whether unbound claims get the chosen node.

    Raises:
        Conflict: a claim changed meanwhile. Try again.
        KubeError: the API server did not answer or write.
    """
    # The first claim that does not work decides: no pod of the gang could start.
    try:
        for name in dict.fromkeys((*claim_names(job), *of_pods)):
            one_node = serves_one_node(job.namespace, name)
            unusable = await _prepare(client, job, name, for_one_node=one_node, binds=binds)
            if unusable is not None:
                return unusable
        for volume, name in pod_claim_classes(job, default=default_class):
            unusable = pod_claim_trouble(volume, name, await _storage_class(client, name))
            if unusable is not None:
                return unusable
        for driver in inline_drivers(job):
            unusable = await _inline_trouble(client, driver)
            if unusable is not None:
                return unusable
    except Forbidden as error:
        log.warning("claims_not_readable", job=job.key, error=error.message)
    return None


async def _prepare(
    client: KubeClient, job: Job, name: str, *, for_one_node: bool, binds: bool
) -> ClaimUnusable | None:
    namespace = job.namespace
    try:
        raw = await reads.get(client, PERSISTENT_VOLUME_CLAIMS, name=name, namespace=namespace)
    except NotFound:
        return missing_claim(name)
    view = storage_codec.persistent_volume_claim(raw)
    claim = replace(_claim_of(view), for_one_node=for_one_node)
    # The class matters only until a node is selected, so most starts read no class.
    unbound = not claim.bound and not claim.selected_node
    storage = await _storage_class(client, claim.storage_class) if unbound else None
    step = claim_step(job, claim, storage)
    # `claim_step` decides. This function only reads and writes.
    match step:
        case ClaimReady():
            return None
        case ClaimUnusable():
            return step
        case SelectNode() if not binds:
            return None
        case SelectNode(node=node):
            # The resource version makes the write fail if somebody else selected a node meanwhile.
            metadata = {
                "resourceVersion": view.resource_version,
                "annotations": {ANNOTATION_SELECTED_NODE: node},
            }
            await writes.merge_patch(
                client,
                PERSISTENT_VOLUME_CLAIMS,
                name=name,
                namespace=namespace,
                body={"metadata": metadata},
            )
            log.info("claim_node_selected", job=job.key, claim=name, node=node)
            return None


async def _inline_trouble(client: KubeClient, driver: str) -> ClaimUnusable | None:
    # The operator may list CSIDrivers, but not get one.
    named = f"metadata.name={driver}"
    listed = map(
        storage_codec.csi_driver, await reads.list_all(client, CSI_DRIVERS, field_selector=named)
    )
    view = next((each for each in listed if each.name == driver), None)
    return inline_trouble(
        driver, exists=view is not None, serves_pods=view is not None and view.serves_pods
    )


async def _storage_class(client: KubeClient, name: str) -> StorageClassFacts | None:
    if not name:
        return None
    try:
        raw = await reads.get(client, STORAGE_CLASSES, name=name)
    except NotFound:  # a name by which volumes are matched, nothing more
        return None
    view = storage_codec.storage_class(raw)
    return StorageClassFacts(
        waits_for_consumer=view.binding_mode == "WaitForFirstConsumer",
        provisioner=view.provisioner,
    )


def _claim_of(view: ClaimView) -> ClaimFacts:
    return ClaimFacts(
        name=view.name,
        storage_class=view.storage_class,
        bound=bool(view.volume),
        lost=view.lost,
        selected_node=view.selected_node,
        deleting=view.deleting,
        for_one_pod=view.sharing is Sharing.ONE_POD,
        is_block=view.is_block,
    )
