"""Dockerfiles that are read rather than run, and layers that are the same for the same files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tools.release.images import RecipeError, read_recipe, write_folder
from tools.release.oci import LAYER, Layout, pack, read_archived
from tools.release.source import ROOT


def test_the_operators_dockerfile_is_read_whole() -> None:
    recipe = read_recipe(ROOT / "docker" / "operator.Dockerfile")
    assert recipe.copies == {
        "site": "opt/site-packages",
        "bundle": "opt/drumline-agent",
        "app": "opt/drumline",
    }
    assert recipe.start["User"] == "65532:65532"
    assert recipe.start["Entrypoint"] == ["python3", "-m", "drumline"]
    assert "PYTHONPATH=/opt/drumline:/opt/site-packages" in recipe.start["Env"]
    assert "PYTHONUNBUFFERED=1" in recipe.start["Env"]
    assert recipe.packages == []


def test_the_trainers_dockerfile_is_read_whole() -> None:
    recipe = read_recipe(ROOT / "docker" / "trainer.Dockerfile")
    assert recipe.copies == {"site": "opt/site-packages", "app": "opt/drumline"}
    assert recipe.start["Entrypoint"] == ["python3", "-m", "drumline_agent"]
    assert recipe.packages == ["g++", "python3-pip-whl"]


def test_what_would_have_to_be_executed_is_refused(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    for run in ("apt-get install something", "true"):
        dockerfile.write_text(f'FROM scratch\nARG DEBIAN_PACKAGES="g++"\nRUN {run}\n')
        with pytest.raises(RecipeError, match="RUN"):
            read_recipe(dockerfile)


def folder_of(place: Path, *, written: float) -> Path:
    """A folder with a program, a hard link to it and a link, made at that time."""
    (place / "inner").mkdir(parents=True)
    program = place / "program"
    program.write_text("code")
    program.chmod(0o775)
    os.link(program, place / "inner" / "again")
    (place / "link").symlink_to("program")
    for path in place.rglob("*"):
        os.utime(path, (written, written), follow_symlinks=False)
    return place


def layer(folder: Path, target: Path) -> tuple[dict[str, object], bytes, str]:
    layout = Layout(target)
    stored = layout.add_layer(lambda tar: write_folder(folder, tar, at="opt/place"))
    digest = stored.descriptor["digest"].removeprefix("sha256:")
    return stored.descriptor, (target / "blobs/sha256" / digest).read_bytes(), stored.diff_id


def test_a_layer_depends_on_the_files_alone(tmp_path: Path) -> None:
    first = layer(folder_of(tmp_path / "a", written=1e9), tmp_path / "first")
    second = layer(folder_of(tmp_path / "b", written=1.5e9), tmp_path / "second")
    assert first == second
    descriptor, content, diff_id = first
    plain = gzip.decompress(content)
    assert descriptor == {
        "mediaType": LAYER,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }
    assert diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        kinds = {entry.name: (entry.type, oct(entry.mode)) for entry in tar}
    assert kinds == {
        "opt": (tarfile.DIRTYPE, "0o755"),
        "opt/place": (tarfile.DIRTYPE, "0o755"),
        "opt/place/inner": (tarfile.DIRTYPE, "0o755"),
        "opt/place/inner/again": (tarfile.REGTYPE, "0o755"),
        "opt/place/link": (tarfile.SYMTYPE, "0o755"),
        "opt/place/program": (tarfile.REGTYPE, "0o755"),
    }


def test_a_packed_layout_names_its_manifest(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    descriptor = layout.add_json({"a": 1}, media_type="application/json")
    layout.list(descriptor, reference="9.8.7")
    layout.finish()
    for archive in ("first.tar", "second.tar"):
        pack(tmp_path / "layout", tmp_path / archive)
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    with tarfile.open(tmp_path / "first.tar") as tar:
        assert json.loads(read_archived(tar, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (entry,) = json.loads(read_archived(tar, "index.json"))["manifests"]
        blob = read_archived(tar, f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}")
    assert json.loads(blob) == {"a": 1}
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "9.8.7"}
