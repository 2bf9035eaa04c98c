"""A release in small: packages and wheels made for the test, signed with a key of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.release import debian
from tools.release.images import Image, Variant
from tools.release.source import Source

CONTENTS = {
    "base-files": {
        "./etc/os-release": "ID=debian\n",
        "./usr/share/doc/base-files/copyright": "GPL",
        "./usr/share/doc/base-files/changelog": "long",
        "./usr/share/man/man1/x.1": "manual",
    },
    "base-passwd": {
        "./usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/sh\n",
        "./usr/share/base-passwd/group.master": "root:*:0:\n",
    },
    "ca-certificates": {
        "./usr/share/ca-certificates/mozilla/A.crt": "first\n",
        "./usr/share/ca-certificates/mozilla/B.crt": "second\n",
    },
    "libc-bin": {
        "./usr/share/libc-bin/nsswitch.conf": "hosts: files dns\n",
        "./lib/libc.so.6": "code",
        "./lib/.hidden": "dots",
    },
}
"""Package -> its files."""


@pytest.fixture
def source() -> Source:
    return Source(version="9.8.7", commit="c" * 40, modified=False, epoch=1_700_000_000)


@pytest.fixture
def packages(tmp_path: Path) -> list[debian.Package]:
    """Real packages, with a script that leaves a trace where anybody runs it."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is Debian's")
    return [_package(name, tmp_path) for name in CONTENTS]


def _package(name: str, folder: Path) -> debian.Package:
    root = folder / name
    control = root / "DEBIAN"
    control.mkdir(parents=True)
    fields = {"Package": name, "Version": "1:2+b3", "Architecture": "all"}
    about = {"Maintainer": "A <a@example.com>", "Description": "a test"}
    lines = "".join(f"{key}: {value}\n" for key, value in {**fields, **about}.items())
    (control / "control").write_text(lines)
    script = control / "postinst"
    script.write_text(f"#!/bin/sh\ntouch {folder / 'executed'}\n")
    script.chmod(0o755)
    for path, text in CONTENTS[name].items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    file = folder / f"{name}.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return debian.read_package(file)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of Python packages with their metadata."""
    metadata = {
        "Flask_Extra": "Version: 1.0+local\nLicense-Expression: MIT\n",
        "ply": "Version: 3\nLicense: BSD\n a license in full\n",
    }
    for name, fields in metadata.items():
        folder = tmp_path / "site" / f"{name}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{fields}\nText\n")
    return tmp_path / "site"


@pytest.fixture
def image(packages: list[debian.Package], site: Path) -> Image:
    variant = Variant(
        architecture="arm64", digest=f"sha256:{'d' * 64}", packages=packages, site=site
    )
    return Image(name="operator", digest=f"sha256:{'e' * 64}", variants=[variant])
