"""Answers to writes."""

from __future__ import annotations

import pytest

from drumline.kube.errors import Malformed
from drumline.kube.writes import Written, written_in


def an_answer(deep: bytes) -> bytes:
    return b'{"spec":{"overrides":%b},"metadata":{"uid":"u","resourceVersion":"7"}}' % deep


@pytest.mark.parametrize("levels", [1, 900, 1500, 10_000])
def test_an_object_nested_too_deep_is_written_all_the_same(levels: int) -> None:
    assert written_in(an_answer(b"[" * levels + b"]" * levels)) == Written("u", "7")


def test_what_is_no_object_is_malformed() -> None:
    for answer in (b"", b"[]", an_answer(b"[" * 5000)):
        with pytest.raises(Malformed):
            written_in(answer)
