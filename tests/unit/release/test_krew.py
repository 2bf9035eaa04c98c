"""Install the kubectl plugin as krew does: check the archive, unpack it and link the launcher."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import yaml

from tools.release.krew import LAUNCHER, MANIFEST, packed, write_plugin
from tools.release.source import read_source


def a_wheel(folder: Path) -> Path:
    wheel = folder / "drumline-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return wheel


def test_the_manifest_names_the_archive_and_its_checksum(tmp_path: Path) -> None:
    source = read_source()
    wheel = a_wheel(tmp_path)
    write_plugin(tmp_path, wheel, source=source, address="https://example.test/releases/1/")
    described = yaml.safe_load((tmp_path / MANIFEST).read_text())
    (platform,) = described["spec"]["platforms"]
    name = platform["uri"].rpartition("/")[2]
    assert platform["uri"] == f"https://example.test/releases/1/{name}"
    assert platform["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert described["spec"]["version"] == f"v{source.version}"
    with tarfile.open(tmp_path / name) as tar:
        assert sorted(tar.getnames()) == sorted([LAUNCHER, wheel.name])
        assert tar.getmember(platform["bin"]).mode & 0o111


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    wheel = a_wheel(tmp_path)
    assert packed(wheel, epoch=1) == packed(wheel, epoch=1)


def test_the_linked_launcher_runs_the_wheel_beside_it(tmp_path: Path) -> None:
    unpacked, bin_folder = tmp_path / "store", tmp_path / "bin"
    bin_folder.mkdir()
    archive = tmp_path / "plugin.tar.gz"
    archive.write_bytes(packed(a_wheel(tmp_path), epoch=1))
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    (bin_folder / LAUNCHER).symlink_to(unpacked / LAUNCHER)  # as krew does
    uv = bin_folder / "uv"
    uv.write_text('#!/bin/sh\necho "$@"\n')
    uv.chmod(0o755)
    path = f"{bin_folder}:{os.environ['PATH']}"
    done = subprocess.run(
        [bin_folder / LAUNCHER, "why", "job a"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    wheel = unpacked / "drumline-0.1.0-py3-none-any.whl"
    assert done.stdout == f"tool run --quiet --from {wheel}[cli] drumline why job a\n"
