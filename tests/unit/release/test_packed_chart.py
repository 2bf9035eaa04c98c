"""The chart's archive and its layout: the same twice, and what Helm itself pulls."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tools.cluster.binaries import ensure_binaries
from tools.release.chart import CHART, packed_chart, write_layout
from tools.release.registry import serving
from tools.release.source import Source


def test_the_archive_has_the_charts_files_and_the_commits_time(source: Source) -> None:
    archive = packed_chart(source)
    assert int.from_bytes(archive[4:8], "little") == source.epoch  # in the header of gzip
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = tar.getnames()
        assert {entry.mtime for entry in tar} == {source.epoch}
    assert names[0] == "drumline/Chart.yaml"
    assert {"drumline/values.yaml", "drumline/templates/NOTES.txt"} < set(names)
    assert "drumline/files/crds/trainingjobs.yaml" in names


def test_another_checkout_gives_the_same_bytes(source: Source, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(CHART, copy)
    (copy / ".DS_Store").write_text("what .helmignore leaves out")
    for path in copy.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    assert packed_chart(source, chart=copy) == packed_chart(source)


def test_helm_pulls_the_layout_from_a_registry(source: Source, tmp_path: Path) -> None:
    helm = ensure_binaries(["helm"], say=print)["helm"]
    archive = packed_chart(source)
    digest = write_layout(tmp_path / "layout", archive, source=source)
    with serving({"charts/drumline": tmp_path / "layout"}) as host:
        command = [helm, "pull", f"oci://{host}/charts/drumline", "--plain-http"]
        done = subprocess.run(
            [*command, "--destination", tmp_path], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert digest in done.stdout
    (pulled,) = tmp_path.glob("*.tgz")
    assert pulled.read_bytes() == archive


def test_the_images_of_a_release_are_the_charts_default_by_digest(
    source: Source, tmp_path: Path
) -> None:
    digests = {"operator": f"sha256:{'a' * 64}", "trainer": f"sha256:{'b' * 64}"}
    file = tmp_path / "chart.tgz"
    file.write_bytes(packed_chart(source, digests=digests))
    helm = ensure_binaries(["helm"], say=print)["helm"]
    shown = subprocess.run([helm, "show", "values", file], capture_output=True, check=True)
    values = yaml.safe_load(shown.stdout)
    assert values["image"]["digest"] == digests["operator"]
    assert values["trainerImage"]["digest"] == digests["trainer"]
    assert values["agentImage"]["digest"] == ""
    assert b"# sha256:...; overrides the tag" in shown.stdout
    template = [helm, "template", "a", file, "--set=imageRegistry=registry.example.com"]
    rendered = subprocess.run(template, capture_output=True, check=True)
    assert (
        f"registry.example.com/drumline/operator@{digests['operator']}".encode() in rendered.stdout
    )
    with pytest.raises(ValueError, match=r"image\.digest"):
        packed_chart(source, chart=_with_digest(tmp_path), digests=digests)


def _with_digest(folder: Path) -> Path:
    copy = folder / "copy"
    shutil.copytree(CHART, copy)
    values = copy / "values.yaml"
    values.write_text(values.read_text().replace('digest: ""', "digest: sha256:c"))
    return copy
