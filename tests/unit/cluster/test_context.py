from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.cluster.context import ensure_app, image_cache, pinned


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "drumline" / "images"


def names(image: str, *, machine: str | None = None) -> set[str]:
    return set(re.findall(r"(?m)^([a-z0-9-]+)==", pinned(image, machine=machine)))


def test_an_image_has_what_its_extra_requires_and_nothing_of_the_others() -> None:
    operator, trainer = names("operator"), names("trainer")
    assert {"kopf", "aiohttp", "yarl", "multidict", "msgspec", "pydantic-core", "numpy"} <= operator
    assert {"torch", "numpy", "safetensors", "sympy"} <= trainer
    assert {"tokenizers", "obstore", "pillow", "tensorboard", "wandb"} <= trainer
    assert operator.isdisjoint({"torch", "pytest", "kubernetes"})
    assert trainer.isdisjoint({"kopf", "aiohttp", "boto3", "pytest"})


def test_an_image_for_another_machine_has_what_there_is_for_that_one() -> None:
    assert "nvidia-cuda-runtime" in names("trainer", machine="aarch64")
    assert "nvidia-cuda-runtime" not in names("trainer", machine="s390x")
    assert names("operator", machine="aarch64") == names("operator")


def test_every_pin_keeps_its_hashes() -> None:
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", pinned("operator")))


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_every_pin_is_for_the_python_of_the_image(image: str) -> None:
    pins = re.findall(r"(?m)^([a-z].*?) \\$", pinned(image))
    assert len(pins) == len(names(image))
    assert all(pin.marker is None or pin.marker.evaluate() for pin in map(Requirement, pins))


def test_our_packages_are_compiled_and_made_once(cache: Path) -> None:
    with image_cache():
        first = ensure_app("trainer")
        made = first.stat().st_ctime_ns
        second = ensure_app("trainer")
    assert (second, second.stat().st_ctime_ns) == (first, made)
    assert first.parent == cache
    package = first / "drumline_contract"
    compiled = package / "__pycache__" / "layout.cpython-311.pyc"
    flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
    assert flags == 0b01  # by hash, never checked against a source's time


def test_what_a_killed_maker_left_is_gone_for_the_next(cache: Path) -> None:
    with image_cache():
        pass
    (cache / "scratch" / "half").mkdir(parents=True)
    with image_cache():
        assert not (cache / "scratch" / "half").exists()
