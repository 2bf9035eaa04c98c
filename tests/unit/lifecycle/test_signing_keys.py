"""Which key a gang's token follows from while the key is changed."""

from __future__ import annotations

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.children import job_token, token_secret, token_secret_name
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.signing_keys import KeyState, SigningKeys, key_id
from tests.builders import T0, a_job, admitted, pod_manifest, running, with_status

SETTINGS = PodSettings(trainer_image="drumline/trainer:1", join_image="drumline/operator:1")
OLD, NEW = b"the old key, long enough", b"the new key, long enough"


@pytest.mark.parametrize(
    ("keys", "name", "key", "state"),
    [
        (SigningKeys(current=OLD), None, OLD, KeyState.CURRENT),
        (SigningKeys(current=OLD), key_id(OLD), OLD, KeyState.CURRENT),
        (SigningKeys(current=NEW, previous=OLD), key_id(OLD), OLD, KeyState.PREVIOUS),
        (SigningKeys(current=NEW, previous=OLD), key_id(NEW), NEW, KeyState.CURRENT),
        (SigningKeys(current=NEW, previous=OLD), None, OLD, KeyState.PREVIOUS),
        (SigningKeys(current=NEW), key_id(NEW), NEW, KeyState.CURRENT),
        (SigningKeys(current=NEW), key_id(OLD), NEW, KeyState.MISSING),
    ],
)
def test_a_gang_goes_on_with_the_key_it_was_admitted_under(
    keys: SigningKeys, name: str | None, key: bytes, state: KeyState
) -> None:
    assert (keys.of(name), keys.state(name)) == (key, state)


def test_a_key_s_name_says_nothing_of_the_key() -> None:
    assert key_id(OLD) != key_id(NEW)
    assert key_id(OLD) not in job_token(OLD, "uid").decode()


def test_secret_and_pods_of_one_key_belong_together() -> None:
    old = admitted(a_job())
    first = with_status(old, old.status.model_copy(update={"signing_key": key_id(OLD)}))
    second = with_status(old, old.status.model_copy(update={"signing_key": key_id(NEW)}))
    names = {token_secret_name(job) for job in (old, first, second)}
    assert len(names) == 3
    for job in (old, first, second):
        assert token_secret(job, b"t")["metadata"]["name"] == token_secret_name(job)
        pod = pod_manifest(
            job, index=0, gpus=PoolGpus(resource="nvidia.com/gpu"), settings=SETTINGS
        )
        (volume,) = [each for each in pod["spec"]["volumes"] if "secret" in each]
        assert volume["secret"]["secretName"] == token_secret_name(job)


def test_a_gang_keeps_its_key_until_it_is_admitted_again() -> None:
    job = running(admitted(a_job()))
    job = with_status(job, job.status.model_copy(update={"signing_key": key_id(OLD)}))
    restarted = transitions.restarted(
        job, indices=(0,), reason="PodLost", message="m", epoch=2, now=T0
    )
    assert restarted.signing_key == key_id(OLD)
    again = transitions.admitted(
        with_status(job, transitions.suspended(job, now=T0)),
        pool="h100",
        nodes=("n1", "n2"),
        epoch=2,
        image="i",
        priority=0,
        now=T0,
        signing_key=key_id(NEW),
    )
    assert again.signing_key == key_id(NEW)
