from __future__ import annotations

import pytest

from tools.cluster.binaries import KUBERNETES_VERSIONS, kubernetes_version
from tools.cluster.cache import MissingToolError


def test_without_a_wish_it_is_the_newest_minor() -> None:
    newest = max(KUBERNETES_VERSIONS, key=lambda minor: int(minor.partition(".")[2]))
    assert kubernetes_version({}) == KUBERNETES_VERSIONS[newest]
    assert kubernetes_version({"KUBERNETES_MINOR": ""}) == KUBERNETES_VERSIONS[newest]


def test_a_minor_is_its_newest_known_patch() -> None:
    for minor, version in KUBERNETES_VERSIONS.items():
        assert kubernetes_version({"KUBERNETES_MINOR": minor}) == version
        assert version.startswith(f"{minor}.")


def test_an_unknown_minor_is_refused_with_those_there_are() -> None:
    with pytest.raises(MissingToolError, match=r"KUBERNETES_MINOR=1\.12: known minors are 1\.34"):
        kubernetes_version({"KUBERNETES_MINOR": "1.12"})
