"""Images pinned by digest: all pods of a job run the same bytes, also replacements on other nodes.

A tag may move while a job runs. The kubelet reports what it runs as `repository@sha256:...`; the
digest is appended to the reference that was asked for (`repository:tag@sha256:...`), because then
only the digest is used, and the tag still says what was asked for.
https://kubernetes.io/docs/concepts/containers/images/#image-names
"""

from __future__ import annotations

import re
from typing import Final

MAX_IMAGE_CHARS: Final = 512
"""Longest reference that status can hold."""
_IMAGE_ID: Final = re.compile(
    r"(?:[a-z0-9-]+://)?(?P<repository>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})"
)


def pinned_image(image: str, image_id: str) -> str:
    """`image` with the digest that the kubelet reports; unchanged where none can be relied on.

    No digest is taken of an image that was loaded onto its node (its id is no reference), and none
    of another repository: a runtime reports one repository of several that hold the same content,
    and the digest may not exist in the one that was asked for.

    Examples:
        "example.com/a:1", "example.com/a@sha256:11..." -> "example.com/a:1@sha256:11..."
        "example.com/a:1", "sha256:11..."               -> "example.com/a:1"
        "example.com/a:1", "mirror.test/a@sha256:11..." -> "example.com/a:1"

    Args:
        image: the reference in the pod's spec.
        image_id: `imageID` of the container's status; empty before it was pulled.
    """
    match = _IMAGE_ID.fullmatch(image_id)
    if match is None or "@" in image or not _is_same_repository(match["repository"], image):
        return image
    pinned = f"{image}@{match['digest']}"
    return pinned if len(pinned) <= MAX_IMAGE_CHARS else image


def is_pinned_form(image: str, *, requested: str) -> bool:
    """Whether `image` is the requested reference, with or without a digest appended."""
    return image == requested or image.startswith(f"{requested}@")


def _is_same_repository(reported: str, image: str) -> bool:
    """Whether a runtime reports the repository that was asked for.

    It completes a short name by the registry that it found it in, and by `library/`.

    Example: "python:3.11" is reported as "registry.example.com/library/python"
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
