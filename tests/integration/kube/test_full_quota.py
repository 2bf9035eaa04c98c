"""A full quota hides whether an object exists: the premise of `children.was_created`."""

from __future__ import annotations

import pytest

from tests.kube import Json, Kube
from tools.cluster.rest import ApiStatusError


def test_a_full_quota_refuses_a_create_before_the_name_is_looked_for(
    kube: Kube, namespace: str
) -> None:
    metadata: Json = {"name": "few", "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {**metadata, "name": "token"}}
    kube.create(secret)
    spec = {"hard": {"count/secrets": "1"}}
    kube.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})

    def counts(quota: Json | None) -> bool:
        used = (quota or {}).get("status", {}).get("used", {})
        return used.get("count/secrets") == "1"

    kube.wait("resourcequotas", "few", namespace, counts)
    with pytest.raises(ApiStatusError, match="exceeded quota"):
        kube.create(secret)
