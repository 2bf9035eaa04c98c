"""Release files come from a local server that serves the paths of the official ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.cluster.binaries import CATALOGUE, ensure_binaries
from tools.cluster.downloads import Release, checksum_of, download

PROGRAM = b"#!/bin/sh\necho hello\n"


class _Quiet(SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    asked: list[str] = []
    handler = type("Handler", (_Quiet,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder, asked
        server.shutdown()
        thread.join()


def publish(folder: Path, name: str, *, content: bytes = PROGRAM, digest: str = "") -> None:
    """Put one program of the catalogue where its official release lies, with its checksum."""
    binary = CATALOGUE[name]
    assert binary.release is not None
    release = binary.release.filled(binary.version, system="linux", machine="x86_64")
    body = _archive(release.member, content) if release.member else content
    file = folder / release.url.removeprefix("https://")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    line = digest or hashlib.sha256(body).hexdigest()
    checksums = folder / release.checksums.removeprefix("https://")
    checksums.write_text(f"{line}  {file.name}\n" if release.member else f"{line}\n")


def _archive(member: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo(member)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def run(origin: str, names: list[str], into: Path) -> tuple[set[str], list[str]]:
    said: list[str] = []
    releases: dict[str, tuple[Release, Path]] = {}
    for name in names:
        binary = CATALOGUE[name]
        assert binary.release is not None
        filled = binary.release.filled(binary.version, system="linux", machine="x86_64")
        releases[name] = (filled, into / name)
    came = download(releases, say=said.append, environment={"DRUMLINE_RELEASES": origin})
    return came, said


def test_programs_come_alone_and_out_of_archives(
    origin: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    url, folder, _ = origin
    names = ["etcd", "helm", "kind", "kube-apiserver", "kubectl", "kubelet"]
    for name in names:
        publish(folder, name)
    came, said = run(url, names, tmp_path / "bin")
    assert came == set(names), said
    for name in names:
        assert (tmp_path / "bin" / name).read_bytes() == PROGRAM
        assert (tmp_path / "bin" / name).stat().st_mode & 0o111
    assert sorted(file.name for file in (tmp_path / "bin").iterdir()) == names


def test_a_wrong_checksum_leaves_nothing_behind(
    origin: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    url, folder, _ = origin
    publish(folder, "kubectl")
    publish(folder, "kubelet", digest="0" * 64)
    came, said = run(url, ["kubectl", "kubelet"], tmp_path)
    assert came == {"kubectl"}
    assert any("kubelet" in line and "differs from its published checksum" in line for line in said)
    assert not (tmp_path / "kubelet").exists()


@pytest.mark.parametrize("listed", ["<html>sign in</html>", "", "0" * 63])
def test_a_page_instead_of_a_checksum_is_no_checksum(
    origin: tuple[str, Path, list[str]], tmp_path: Path, listed: str
) -> None:
    url, folder, _ = origin
    publish(folder, "kubectl")
    for file in folder.rglob("*.sha256"):
        file.write_text(listed)
    came, said = run(url, ["kubectl"], tmp_path)
    assert not came
    assert "no checksum of kubectl" in said[0]


def test_an_archive_without_the_program_is_refused(
    origin: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    url, folder, _ = origin
    publish(folder, "helm")
    archive = next(folder.rglob("*.tar.gz"))
    archive.write_bytes(_archive("README.md", b"text"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    next(folder.rglob("*.sha256sum")).write_text(f"{digest}  {archive.name}\n")
    came, said = run(url, ["helm"], tmp_path)
    assert not came
    assert "has no linux-amd64/helm" in said[0]


def test_an_unreachable_origin_is_asked_once(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        port = server.server_port  # closed again: nobody listens
    came, said = run(f"http://127.0.0.1:{port}", ["kubectl", "kubelet", "helm"], tmp_path)
    assert not came
    assert len(said) == 1
    assert "no release binaries from here" in said[0]


def test_off_asks_nobody(tmp_path: Path) -> None:
    assert run("off", ["kubectl"], tmp_path) == (set(), [])


def test_a_server_that_lacks_one_program_gives_the_others(
    origin: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    url, folder, _ = origin
    publish(folder, "etcd")
    came, said = run(url, ["etcd", "helm"], tmp_path)
    assert came == {"etcd"}
    assert any(line.strip().startswith("helm: ") and "404" in line for line in said)


def test_ensure_binaries_downloads_before_it_builds(
    origin: tuple[str, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder, asked = origin
    publish(folder, "helm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DRUMLINE_RELEASES", url)
    monkeypatch.setattr("tools.cluster.binaries.this_platform", lambda: ("linux", "x86_64"))
    monkeypatch.setattr("tools.cluster.go_modules.go_tool", lambda: pytest.fail("built"))
    said: list[str] = []
    helm = ensure_binaries(["helm"], say=said.append)["helm"]
    assert helm.read_bytes() == PROGRAM
    before = len(asked)
    assert ensure_binaries(["helm"], say=said.append)["helm"] == helm
    assert len(asked) == before, "the cache has it"


def test_checksum_lists_are_read_as_the_tools_write_them() -> None:
    alone, other = "a" * 64, "b" * 64
    assert checksum_of(alone, file="kubectl") == alone
    assert checksum_of(f"{alone}\n", file="kubectl") == alone
    assert checksum_of(f"{alone}  helm.tar.gz\n{other} *kind\n", file="kind") == other
    assert checksum_of(f"{alone}  helm.tar.gz", file="kind") is None
    assert checksum_of("not a digest", file="kind") is None
