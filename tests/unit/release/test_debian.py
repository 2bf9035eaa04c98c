"""A base image from packages of which nothing is executed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tools.release import debian


def written(packages: list[debian.Package]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        debian.write_files(packages, tar)
    return content.getvalue()


def files(content: bytes) -> dict[str, str]:
    """Path -> text, or where a link leads."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {
            entry.name: file.read().decode() if (file := _file(tar, entry)) else entry.linkname
            for entry in tar
            if not entry.isdir()
        }


def _file(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> io.BufferedIOBase | None:
    return tar.extractfile(entry) if entry.isfile() else None  # pyright: ignore - IO of bytes


def test_files_are_where_a_merged_usr_has_them(packages: list[debian.Package]) -> None:
    result = files(written(packages))
    assert result["lib"] == "usr/lib"
    assert result["usr/lib/libc.so.6"] == "code"
    assert result["usr/lib/.hidden"] == "dots"
    assert "lib/libc.so.6" not in result


def test_what_no_pod_reads_is_left_out_but_not_the_licenses(
    packages: list[debian.Package],
) -> None:
    result = files(written(packages))
    assert result["usr/share/doc/base-files/copyright"] == "GPL"
    assert not {"usr/share/doc/base-files/changelog", "usr/share/man/man1/x.1"} & result.keys()


def test_what_scripts_would_make_is_there_and_no_script_ran(
    packages: list[debian.Package], tmp_path: Path
) -> None:
    result = files(written(packages))
    assert result["etc/passwd"] == "root:*:0:0:root:/root:/bin/sh\n"
    assert result["etc/nsswitch.conf"] == "hosts: files dns\n"
    assert result["etc/ssl/certs/ca-certificates.crt"] == "first\nsecond\n"
    assert result["usr/lib/ssl/cert.pem"] == "/etc/ssl/certs/ca-certificates.crt"
    assert "Version: 1:2+b3" in result["var/lib/dpkg/status.d/libc-bin"]
    assert not (tmp_path / "executed").exists()


def test_every_parent_folder_comes_before_what_is_in_it(packages: list[debian.Package]) -> None:
    with tarfile.open(fileobj=io.BytesIO(written(packages))) as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    for place, name in enumerate(names):
        parent = name.rpartition("/")[0]
        assert not parent or parent in names[:place], name


def test_the_same_packages_give_the_same_bytes(packages: list[debian.Package]) -> None:
    assert written(packages) == written(packages)
    with tarfile.open(fileobj=io.BytesIO(written(packages))) as tar:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in tar} == {(0, 0, "")}
