from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.binaries import (
    KUBERNETES_VERSION,
    KUBERNETES_VERSIONS,
    binary_path,
    ensure_binaries,
    kubectl_serves,
    kubernetes_version,
)
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


@pytest.mark.parametrize(
    ("version", "serves"), [("1.35.0", True), ("1.36.9", True), ("1.37.1", True), ("1.34.9", False)]
)
def test_a_kubectl_within_one_minor_serves(version: str, serves: bool) -> None:
    output = f"Client Version: v{version}\nKustomize Version: v5.7.1\n"
    assert kubectl_serves(output, version="1.36.3") == serves
    assert not kubectl_serves("command not found", version="1.36.3")


def test_the_kubectl_of_the_machine_replaces_a_link_to_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "kubectl"
    own.write_text(f'#!/bin/sh\necho "Client Version: v{KUBERNETES_VERSION}"\n')
    own.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DRUMLINE_RELEASES", "off")
    place = binary_path("kubectl")
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "gone")
    assert ensure_binaries(["kubectl"], say=print)["kubectl"].resolve() == own
