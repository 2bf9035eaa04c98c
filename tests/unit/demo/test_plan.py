"""What the demo announces for machines in different states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster import ClusterError, ClusterSpec
from tools.cluster.binaries import CATALOGUE, binary_path
from tools.cluster.cache import cache_dir
from tools.demo.plan import about, made_once, plan

SPEC = ClusterSpec(name="nobody-runs-this")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_root_and_docker_the_missing_things_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nothing-here")
    with pytest.raises(ClusterError, match=r"take root.*no `docker` command"):
        plan(SPEC)


def test_what_is_in_the_cache_is_not_announced() -> None:
    before = [part.text for part in made_once()]
    assert any(text.startswith("once: download etcd, ") for text in before)
    assert "once: make the images of nodes and pods, beside the build" in before
    for name in CATALOGUE:
        binary_path(name).parent.mkdir(parents=True)
        binary_path(name).touch()
    (cache_dir() / "images").mkdir()
    (cache_dir() / "images" / "archive-0123.tar").touch()
    assert not any(part.text.startswith(("once: download", "once: make")) for part in made_once())


@pytest.mark.parametrize(("seconds", "text"), [(5, "~5 s"), (99, "~99 s"), (434, "~7 min")])
def test_durations_are_for_people(seconds: int, text: str) -> None:
    assert about(seconds) == text
