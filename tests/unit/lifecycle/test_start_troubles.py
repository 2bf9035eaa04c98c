"""Why a pod does not come up: kubelets' own sentences, as they are written."""

from __future__ import annotations

import pytest

from drumline.lifecycle.incidents.start_troubles import (
    MAX_SENTENCE_CHARS,
    is_pulling,
    is_silent,
    pulled_until,
    start_trouble,
)
from drumline.lifecycle.model.observed import PodEvent, PodEvents
from tests.builders import T0, a_job, a_pod, admitted

JOB = admitted(a_job())
BAD_MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "kyes" not found'
NO_CLAIM = (
    "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[],"
    " failed to process volumes=[data]: error processing PVC team/dta: failed to fetch PVC from"
    ' API server: persistentvolumeclaims "dta" not found'
)
UNBOUND = "error processing PVC team/data: PVC is not bound"
NO_IMAGE = (
    'failed to pull and unpack image "registry.example.com/team/trian:1": failed to resolve'
    ' reference "registry.example.com/team/trian:1": registry.example.com/team/trian:1: not found'
)
NO_LOGIN = (
    "failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized"
)
NO_REGISTRY = "dial tcp: lookup registry.example.com: i/o timeout"


def seen(*events: tuple[str, str, float], read_at: float = T0 + 10) -> PodEvents:
    """Events as (reason, message, seconds after T0); those of failures are warnings."""
    return PodEvents(
        read_at=read_at,
        events=tuple(
            PodEvent(
                reason=reason,
                message=message,
                at=T0 + at,
                warning=reason not in ("Pulling", "Pulled", "Created", "Started"),
            )
            for reason, message, at in events
        ),
    )


@pytest.mark.parametrize(
    ("reason", "message", "remedy", "missing"),
    [
        ("FailedMount", BAD_MOUNT, "create the Secret kyes, or correct its name", "kyes"),
        ("FailedMount", NO_CLAIM, "create the PersistentVolumeClaim dta, or correct", "dta"),
        ("FailedMount", 'configmap "cfg" not found', "create the ConfigMap cfg", "cfg"),
        ("FailedMount", "references non-existent secret key: token", "add the key", ""),
        ("FailedMount", UNBOUND, "", ""),
        ("FailedMount", "timed out waiting for the condition", "", ""),
        ("FailedCreatePodSandBox", "plugin type=cni failed: permission denied", "", ""),
    ],
)
def test_what_an_event_says(reason: str, message: str, remedy: str, missing: str) -> None:
    trouble = start_trouble(a_pod(JOB, 0), seen((reason, message, 2)))
    assert trouble is not None
    assert trouble.sentence == f"{reason}: {message}"
    assert trouble.remedy.startswith(remedy)
    assert trouble.definite is bool(remedy)
    assert trouble.missing == missing


@pytest.mark.parametrize(
    ("waiting", "definite"),
    [
        (f"ErrImagePull: {NO_IMAGE}", True),
        (f"ImagePullBackOff: Back-off pulling image: ErrImagePull: {NO_LOGIN}", True),
        (f"ErrImagePull: {NO_REGISTRY}", False),
        ("InvalidImageName: couldn't parse image name", True),
        ('CreateContainerConfigError: secret "kyes" not found', True),
        ("CreateContainerConfigError: couldn't find key k in Secret team/keys", True),
        ("CreateContainerConfigError: container has runAsNonRoot and image has root", True),
        ("CreateContainerConfigError: failed to sync secret cache: timed out waiting", False),
        ("CreateContainerError: failed to reserve container name", False),
    ],
)
def test_what_a_waiting_reason_says(waiting: str, definite: bool) -> None:
    pod = a_pod(JOB, 0, waiting=waiting)
    trouble = start_trouble(pod, seen(("FailedMount", "something older", 1)))
    assert trouble is not None
    assert (trouble.sentence, trouble.definite) == (waiting, definite)
    assert not is_silent(pod)


@pytest.mark.parametrize("waiting", ["", "ContainerCreating", "PodInitializing"])
def test_a_pod_that_only_waits_is_silent(waiting: str) -> None:
    pod = a_pod(JOB, 0, waiting=waiting)
    assert is_silent(pod)
    assert start_trouble(pod) is None
    assert start_trouble(pod, seen()) is None


def test_what_was_repaired_is_no_trouble() -> None:
    pod = a_pod(JOB, 0)
    assert start_trouble(pod, seen(("FailedMount", BAD_MOUNT, 2), ("Pulling", "", 8))) is None
    assert start_trouble(pod, seen(("Pulling", "", 2), ("FailedMount", BAD_MOUNT, 2))) is None
    again = start_trouble(pod, seen(("Pulled", "", 2), ("FailedMount", BAD_MOUNT, 3)))
    assert again is not None


def test_a_probe_that_fails_is_no_trouble() -> None:
    assert start_trouble(a_pod(JOB, 0), seen(("Unhealthy", "Readiness probe failed", 2))) is None


def test_until_when_images_were_pulled() -> None:
    assert pulled_until(seen()) is None
    assert pulled_until(seen(("FailedMount", BAD_MOUNT, 1))) is None
    pulling = seen(("Pulled", "", 3), ("Pulling", "", 4), read_at=T0 + 9)
    assert is_pulling(pulling)
    assert pulled_until(pulling) == T0 + 9
    pulled = seen(("Pulling", "", 4), ("Pulled", "", 7), ("Created", "", 7), read_at=T0 + 9)
    assert not is_pulling(pulled)
    assert pulled_until(pulled) == T0 + 7


def test_a_sentence_is_bounded_and_on_a_line() -> None:
    trouble = start_trouble(a_pod(JOB, 0), seen(("FailedMount", "x\n\ty " * 1000, 1)))
    assert trouble is not None
    assert len(trouble.sentence) == MAX_SENTENCE_CHARS
    assert trouble.sentence.startswith("FailedMount: x y x y")
