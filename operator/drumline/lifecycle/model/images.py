"""Images pinned by digest: all pods of a job run the same image, also later replacements.

A tag may move while a job runs. The kubelet reports the running image as `repository@sha256:...`.
The digest is appended to the requested reference (`repository:tag@sha256:...`). Then only the
digest is used, and the tag still shows the request.
https://kubernetes.io/docs/concepts/containers/images/#image-names
"""

from __future__ import annotations

import re
from typing import Final

MAX_IMAGE_CHARS: Final = 512
"""Longest reference that the status can hold."""
_IMAGE_ID: Final = re.compile(
    r"(?:[a-z0-9-]+://)?(?P<repository>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})"
)


def pinned_image(image: str, image_id: str) -> str:
    """Return `image` with the digest that the kubelet reports. Unchanged without a reliable one.

    No digest is used for an image that was loaded onto its node, because its id is not a reference.
    A digest of another repository is not used either: a runtime reports one of several repositories
    with the same content, and the requested one may not contain the digest.

    Examples:
        "example.com/a:1", "example.com/a@sha256:11..." -> "example.com/a:1@sha256:11..."
        "example.com/a:1", "sha256:11..."               -> "example.com/a:1"
        "example.com/a:1", "mirror.test/a@sha256:11..." -> "example.com/a:1"

    Args:
        image: the reference in the pod's spec.
        image_id: `imageID` of the container's status. Empty before the image was pulled.
    """
    # An image that names a digest already is not pinned twice.
    match = _IMAGE_ID.fullmatch(image_id)
    if match is None or "@" in image or not _is_same_repository(match["repository"], image):
        return image
    pinned = f"{image}@{match['digest']}"
    return pinned if len(pinned) <= MAX_IMAGE_CHARS else image


def is_pinned_form(image: str, *, requested: str) -> bool:
    """Return whether `image` is the requested reference, with or without a digest."""
    return image == requested or image.startswith(f"{requested}@")


def _is_same_repository(reported: str, image: str) -> bool:
    """Return whether a runtime reports the requested repository.

    It completes a short name with the registry that has the image, and with `library/`. Example:
    "python:3.11" is reported as "registry.example.com/library/python".
    """
    asked = _without_tag(image)
    registry, slash, path = asked.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return reported == asked
    path = reported.partition("/")[2]
    return asked in {reported, path} or path == f"library/{asked}"


def _without_tag(reference: str) -> str:
    folder, slash, last = reference.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
