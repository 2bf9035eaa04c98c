"""Explain why a pod does not start, with its kubelet's message, and what repairs it.

A container's waiting reason explains it if there is one (`ImagePullBackOff`). Before containers
exist, only the kubelet's events do (`FailedMount`). A trouble is *definite* if waiting does not
repair it: an object that the job names does not exist, or its image cannot be pulled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drumline.lifecycle.model.observed import PodEvent, PodEvents, PodFacts

UNTOLD_REASONS: Final = ("ContainerCreating", "PodInitializing")
"""Waiting reasons without information. They also cover pulls of images and mounts of volumes."""
_PROGRESS: Final = ("Pulling", "Pulled", "Created", "Started")
"""Events of a pod that starts normally."""
_NO_TROUBLE: Final = ("Unhealthy",)
"""Warnings of a running container. Its probe fails until the program listens."""
_IMAGE_REASONS: Final = ("ErrImagePull", "ImagePullBackOff")
_DEFINITE_REASONS: Final = {
    "InvalidImageName": "correct the image's name",
    "ErrImageNeverPull": "load the image onto the nodes, or change imagePullPolicy",
    "CreateContainerConfigError": "correct the field that the message names",
}
_TRANSIENT: Final = re.compile(r"timed out|failed to sync", re.IGNORECASE)
_MISSING_OBJECT: Final = re.compile(
    r"\b(?P<kind>secret|configmap|persistentvolumeclaim)s? \"(?P<name>[^\"]+)\" not found"
)
_MISSING_KEY: Final = re.compile(
    r"couldn't find key|references non-existent (?:secret|config) key", re.IGNORECASE
)
_NO_IMAGE: Final = re.compile(
    r"not found|manifest unknown|does not exist|denied|unauthorized|forbidden"
    r"|authentication required",
    re.IGNORECASE,
)
_KINDS: Final = {
    "secret": "Secret",
    "configmap": "ConfigMap",
    "persistentvolumeclaim": "PersistentVolumeClaim",
}
MAX_SENTENCE_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrouble:
    """Why one pod does not start."""

    pod: PodFacts
    sentence: str
    """The kubelet's reason and message."""
    remedy: str = ""
    """Repair of a definite trouble. Empty for other troubles."""
    missing: str = ""
    """Name of the Secret, ConfigMap or claim that does not exist. Empty for other troubles."""

    @property
    def definite(self) -> bool:
        """Return whether waiting does not repair it."""
        return self.remedy != ""


def start_trouble(pod: PodFacts, seen: PodEvents | None = None) -> StartTrouble | None:
    """Return why this pod does not start, or None if its kubelet has not reported a reason.

    The newest event counts: a pod whose image is being pulled has mounted its volumes, whatever
    failed before.
    """
    reason, _, message = pod.waiting.partition(": ")
    if reason and reason not in UNTOLD_REASONS:
        return _trouble(pod, reason, message)
    newest = _newest(seen)
    if newest is None or not newest.warning:
        return None
    return _trouble(pod, newest.reason, newest.message)


def is_silent(pod: PodFacts) -> bool:
    """Return whether the pod's status does not explain its slow start. Its events may."""
    reason = pod.waiting.partition(": ")[0]
    return not reason or reason in UNTOLD_REASONS


def is_pulling(seen: PodEvents | None) -> bool:
    """Return whether an image of the pod was being pulled when its events were read."""
    newest = _newest(seen)
    return newest is not None and newest.reason == "Pulling"


def pulled_until(seen: PodEvents) -> float | None:
    """Return the time until which images were pulled, by the pod's events, or None."""
    if is_pulling(seen):
        return seen.read_at
    return max((event.at for event in seen.events if event.reason == "Pulled"), default=None)


def _newest(seen: PodEvents | None) -> PodEvent | None:
    """Return the newest event about the start. At equal times progress counts before trouble."""
    telling = [
        event
        for event in (seen.events if seen is not None else ())
        if event.reason in _PROGRESS or (event.warning and event.reason not in _NO_TROUBLE)
    ]
    return max(telling, key=lambda event: (event.at, not event.warning), default=None)


def _trouble(pod: PodFacts, reason: str, message: str) -> StartTrouble:
    text = " ".join(message.split())
    sentence = (f"{reason}: {text}" if text else reason)[:MAX_SENTENCE_CHARS]
    missing = _MISSING_OBJECT.search(text)
    return StartTrouble(
        pod=pod,
        sentence=sentence,
        remedy=_remedy(reason, text, missing),
        missing=missing["name"] if missing is not None else "",
    )


def _remedy(reason: str, text: str, missing: re.Match[str] | None) -> str:
    # The order matters. A time limit is transient even if its message also says "not found".
    if _TRANSIENT.search(text) and missing is None:
        return ""
    if missing is not None:
        kind = _KINDS[missing["kind"]]
        return f"create the {kind} {missing['name']}, or correct its name in the job"
    if _MISSING_KEY.search(text):
        return "add the key to the Secret or ConfigMap, or correct its name in the job"
    if reason in _IMAGE_REASONS and _NO_IMAGE.search(text):
        return "correct the image, or set imagePullSecrets that may pull it"
    return _DEFINITE_REASONS.get(reason, "")
