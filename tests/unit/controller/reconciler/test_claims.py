"""Claims are read as the API server stores them, before pods that mount them are created."""

from __future__ import annotations

import pytest

from drumline.controller.reconciler.claims import prepare_claims
from drumline.kube.client import KubeClient
from tests.builders import a_job, admitted
from tests.unit.controller.app.fake_api import FakeApi

SELECTED = "volume.kubernetes.io/selected-node"
JOB = admitted(a_job(checkpoint={"claimName": "saves"}))


@pytest.mark.parametrize("selected", ["", "node-z"])
@pytest.mark.parametrize("is_old", [False, True])
async def test_the_node_that_somebody_selected_for_a_claim_stays(
    selected: str, *, is_old: bool
) -> None:
    """The class may have its older name."""
    api = FakeApi()
    metadata = {"name": "saves", "namespace": "team"}
    annotations = {SELECTED: selected} if selected else {}
    spec = {} if is_old else {"storageClassName": "disks"}
    if is_old:
        annotations["volume.beta.kubernetes.io/storage-class"] = "disks"
    claim = {"metadata": {**metadata, "annotations": annotations}, "spec": spec}
    api.put("persistentvolumeclaims", claim)
    waits = {"provisioner": "disks.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    api.put("storageclasses", {"metadata": {"name": "disks"}, **waits})
    async with api.serving() as credentials, KubeClient(credentials) as client:
        assert await prepare_claims(client, JOB) is None
    written = "PATCH /api/v1/namespaces/team/persistentvolumeclaims/saves"
    assert api.requests == ([] if selected else [written])
