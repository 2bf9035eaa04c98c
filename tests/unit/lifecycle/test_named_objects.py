"""The ConfigMaps and Secrets that a pod must have, by its manifest."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.manifests.named_objects import NamedObject, named_objects, pull_secrets

Json = dict[str, Any]


def a_pod(
    *, volumes: list[Json] | None = None, mounts: tuple[str, ...] = (), **trainer: Any
) -> Json:
    container = {"name": "trainer", "volumeMounts": [{"name": each} for each in mounts], **trainer}
    return {"spec": {"containers": [container], "volumes": volumes or []}}


def from_volume(**source: Any) -> Json:
    return a_pod(volumes=[{"name": "v", **source}], mounts=("v",))


def from_variable(source: Json) -> Json:
    return a_pod(env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": source}])


SECRET, CONFIG_MAP = NamedObject("Secret", "x"), NamedObject("ConfigMap", "x")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (from_volume(secret={"secretName": "x"}), [SECRET]),
        (from_volume(configMap={"name": "x"}), [CONFIG_MAP]),
        (from_volume(secret={"secretName": "x", "optional": True}), []),
        (from_volume(secret={"secretName": "a-drumline-token"}), []),
        (from_volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "x"}}), [SECRET]),
        (
            from_volume(
                projected={"sources": [{"secret": {"name": "x"}}, {"configMap": {"name": "x"}}]}
            ),
            [CONFIG_MAP, SECRET],
        ),
        (from_volume(emptyDir={}), []),
        (a_pod(volumes=[{"name": "v", "secret": {"secretName": "x"}}]), []),
        (from_variable({"secretKeyRef": {"name": "x", "key": "k"}}), [SECRET]),
        (from_variable({"configMapKeyRef": {"name": "x", "key": "k"}}), [CONFIG_MAP]),
        (from_variable({"secretKeyRef": {"name": "x", "key": "k", "optional": True}}), []),
        (a_pod(envFrom=[{"prefix": "A_", "secretRef": {"name": "x"}}]), [SECRET]),
        (a_pod(envFrom=[{"configMapRef": {"name": "x"}}]), [CONFIG_MAP]),
        (a_pod(envFrom=[{"configMapRef": {"name": "x", "optional": True}}]), []),
    ],
)
def test_an_object_counts_unless_it_is_optional_or_not_used(
    pod: Json, expected: list[NamedObject]
) -> None:
    assert list(named_objects([pod, pod])) == expected


def test_init_containers_and_sidecars_count() -> None:
    pod = a_pod(volumes=[{"name": "v", "configMap": {"name": "x"}}])
    pod["spec"]["initContainers"] = [{"name": "copy", "volumeMounts": [{"name": "v"}]}]
    assert named_objects([pod]) == (CONFIG_MAP,)


def test_pull_secrets_are_named_once() -> None:
    pod = {"spec": {"containers": [], "imagePullSecrets": [{"name": "a"}, {"name": "b"}]}}
    assert pull_secrets([pod, pod]) == ("a", "b")
