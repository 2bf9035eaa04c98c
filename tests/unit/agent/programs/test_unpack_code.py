"""Packed code of a user, and of an attacker, in the init container."""

from __future__ import annotations

import io
import stat
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline_agent.programs.unpack_code import (
    BadCodeArchive,
    code_entries,
    read_parts,
    unpack_code,
)
from drumline_contract import MAX_CODE_FILES, MAX_CODE_PART_BYTES, MAX_UNPACKED_BYTES, code_digest

Change = Callable[[tarfile.TarInfo], None]


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def packed(raw: bytes) -> bytes:
    return zlib.compress(raw, wbits=31)


def unpack(raw: bytes, target: Path) -> None:
    bundle = packed(raw)
    unpack_code(code_entries(bundle, digest=code_digest(bundle)), target=target)


def refusal(raw: bytes) -> str:
    bundle = packed(raw)
    with pytest.raises(BadCodeArchive) as refused:
        code_entries(bundle, digest=code_digest(bundle))
    return str(refused.value)


def test_files_programs_and_links_are_unpacked(tmp_path: Path) -> None:
    raw = archive(
        link("latest.yaml", "conf/large.yaml"),
        member("run.sh", b"#!/bin/sh\n", mode=0o755),
        member("conf/large.yaml", b"lr: 3e-4\n"),
        member("conf/empty", b""),
        link("conf/up", "../run.sh"),
    )
    unpack(raw, tmp_path)
    assert (tmp_path / "latest.yaml").read_text() == "lr: 3e-4\n"
    assert (tmp_path / "conf" / "up").read_text() == "#!/bin/sh\n"
    assert (tmp_path / "conf" / "empty").read_bytes() == b""
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) & 0o100
    assert not stat.S_IMODE((tmp_path / "conf" / "large.yaml").stat().st_mode) & 0o100


def test_what_a_former_sandbox_of_the_pod_left_is_gone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    target = tmp_path / "code"
    (target / "train.py").mkdir(parents=True)
    (target / "out").symlink_to(outside)
    unpack(archive(member("train.py", b"new"), member("out", b"log")), target)
    assert (target / "train.py").read_text() == "new"
    assert (target / "out").read_text() == "log"
    assert outside.read_text() == "kept"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (archive(member("/etc/passwd", b"x")), "'/etc/passwd' leaves the folder"),
        (archive(member("../x", b"x")), "'../x' leaves the folder"),
        (archive(member("a/../../x", b"x")), "leaves the folder"),
        (archive(member("./x", b"x")), "leaves the folder"),
        (archive(member("a//x", b"x")), "leaves the folder"),
        (archive(link("etc", "/etc")), "etc: the link leaves the folder"),
        (archive(link("up", "..")), "up: the link leaves the folder"),
        (archive(link("a/up", "../..")), "a/up: the link leaves the folder"),
        (archive(link("a/b/top", "../.."), link("x", "a/b/top/../../y")), "x: the link leaves"),
        (archive(link("a", "b"), member("a/x", b"x")), "a/x: a is no folder"),
        (archive(member("a/x", b"x"), link("a", "/etc")), "a is in it twice"),
        (archive(member("a", b"1"), member("a", b"2")), "a is in it twice"),
        (archive(member("a", b"1"), member("a/b", b"2")), "a/b: a is no folder"),
        (archive(member("a", type=tarfile.LNKTYPE, linkname="/etc/passwd")), "a: neither"),
        (archive(member("a", type=tarfile.CHRTYPE)), "a: neither"),
        (archive(member("a", type=tarfile.FIFOTYPE)), "a: neither"),
        (archive(member("a" * 300, b"x"), form=tarfile.GNU_FORMAT), "no ustar archive"),
        (archive(member("a" * 300, b"x"), form=tarfile.PAX_FORMAT), "leaves the folder"),
        (archive(member("a", b"x" * 600))[:700], "a: its end is missing"),
        (archive(member("a", b"x"))[:1024], "its end is missing"),
        (archive(member("a", b"x")).replace(b"a\0", b"b\0", 1), "damaged"),
        (b"", "its end is missing"),
        (b"\x01" * 1024, "no ustar archive"),
    ],
)
def test_what_the_packer_never_writes_is_refused(raw: bytes, sentence: str) -> None:
    assert sentence in refusal(raw)


def test_a_negative_size_is_no_number() -> None:
    """tarfile reads it as a negative one and goes round for ever (CVE-2025-8194)."""
    header = bytearray(archive(member("a", b"x"))[:512])
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert "damaged" in refusal(bytes(header))


def test_a_bomb_is_not_inflated() -> None:
    assert f"over {MAX_UNPACKED_BYTES}" in refusal(bytes(MAX_UNPACKED_BYTES + 1))


def test_the_number_of_files_is_bounded() -> None:
    names = [member(f"f{number}") for number in range(MAX_CODE_FILES + 1)]
    assert f"over {MAX_CODE_FILES} files" in refusal(archive(*names))


@pytest.mark.parametrize(
    ("bundle", "sentence"),
    [
        (b"no gzip", "not gzip"),
        (packed(archive(member("a", b"x")))[:-9], "its end is missing"),
        (packed(archive(member("a", b"x"))) + b"more", "something follows"),
    ],
)
def test_damaged_compression_is_refused(bundle: bytes, sentence: str) -> None:
    with pytest.raises(BadCodeArchive, match=sentence):
        code_entries(bundle, digest=code_digest(bundle))


def test_other_bytes_than_those_of_the_digest_are_not_looked_at() -> None:
    with pytest.raises(BadCodeArchive, match=r"sha256.*sha256:0"):
        code_entries(b"anything", digest="sha256:0")


def test_parts_are_read_in_order_and_bounded(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"ab")
    (tmp_path / "1").write_bytes(b"c")
    assert read_parts(tmp_path) == b"abc"
    (tmp_path / "2").write_bytes(bytes(MAX_CODE_PART_BYTES + 1))
    with pytest.raises(BadCodeArchive, match="part 2 is over"):
        read_parts(tmp_path)
    with pytest.raises(BadCodeArchive, match="holds no part"):
        read_parts(tmp_path / "none")
