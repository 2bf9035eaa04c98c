"""Which digest of a kubelet's report is appended to the image that was asked for."""

from __future__ import annotations

import pytest

from drumline.lifecycle.model.images import MAX_IMAGE_CHARS, is_pinned_form, pinned_image

DIGEST = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("image", "image_id", "pinned"),
    [
        ("registry.example.com/team/a:1", f"registry.example.com/team/a@{DIGEST}", True),
        ("registry.example.com:5000/a:1", f"registry.example.com:5000/a@{DIGEST}", True),
        ("registry.example.com:5000/a", f"registry.example.com:5000/a@{DIGEST}", True),
        ("localhost/a:1", f"localhost/a@{DIGEST}", True),
        ("python:3.11", f"hub.example.com/library/python@{DIGEST}", True),
        ("team/a:1", f"hub.example.com/team/a@{DIGEST}", True),
        ("team/a", f"docker-pullable://team/a@{DIGEST}", True),
        ("hub.example.com/team/a:1", f"mirror.example.com/team/a@{DIGEST}", False),
        ("team/a:1", f"hub.example.com/other/a@{DIGEST}", False),
        ("team/a:1", f"hub.example.com/library/import-2026-01-01@{DIGEST}", False),
        ("team/a:1", DIGEST, False),
        ("team/a:1", "", False),
        ("team/a:1", "hub.example.com/team/a@sha256:short", False),
        (f"team/a:1@{DIGEST}", "hub.example.com/team/a@sha256:" + "2" * 64, False),
        ("a" * 500, f"hub.example.com/library/{'a' * 500}@{DIGEST}", False),
    ],
)
def test_a_digest_is_taken_of_the_same_repository_only(
    image: str, image_id: str, pinned: bool
) -> None:
    result = pinned_image(image, image_id)
    assert result == (f"{image}@{DIGEST}" if pinned else image)
    assert len(result) <= MAX_IMAGE_CHARS


def test_a_pinned_image_is_known_by_what_was_asked_for() -> None:
    assert is_pinned_form("a:1", requested="a:1")
    assert is_pinned_form(f"a:1@{DIGEST}", requested="a:1")
    assert not is_pinned_form(f"a:1@{DIGEST}", requested="a:2")
    assert not is_pinned_form("a:10", requested="a:1")
