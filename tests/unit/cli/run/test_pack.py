"""A packed folder: the same bytes anywhere, and what the pod's reader takes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from drumline_agent.programs.unpack_code import code_entries, unpack_code
from drumline_cli.errors import BadInput
from drumline_cli.run.pack import pack
from drumline_contract import MAX_CODE_FILES, MAX_UNPACKED_BYTES


def write(folder: Path, files: dict[str, bytes]) -> list[str]:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return list(files)


FILES = {"train.py": b"print(1)\n", "lib/wörter.txt": b"", "a/" * 40 + "deep.py": b"x" * 5000}


def test_what_is_packed_is_what_is_unpacked(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    paths = write(source, FILES)
    (source / "train.py").chmod(0o755)
    (source / "lib" / "link").symlink_to("../train.py")
    packed = pack(source, [*paths, "lib/link"])
    unpack_code(code_entries(packed.content, digest=packed.digest), target=target)
    assert {path: (target / path).read_bytes() for path in FILES} == FILES
    assert (target / "lib" / "link").readlink() == Path("../train.py")
    assert os.access(target / "train.py", os.X_OK)
    assert not os.access(target / "lib" / "wörter.txt", os.X_OK)
    assert packed.files == 4


def test_times_owners_and_order_do_not_count(tmp_path: Path) -> None:
    for name, modified in (("a", 1_000_000), ("b", 2_000_000)):
        paths = write(tmp_path / name, FILES)
        (tmp_path / name / "train.py").chmod(0o600 if name == "a" else 0o644)
        os.utime(tmp_path / name / "train.py", (modified, modified))
    first = pack(tmp_path / "a", paths)
    assert first == pack(tmp_path / "b", paths[::-1])
    (tmp_path / "b" / "train.py").write_text("print(2)\n")
    assert first.digest != pack(tmp_path / "b", paths).digest


@pytest.mark.parametrize(
    ("target", "sentence"),
    [("/etc/hosts", "link to /etc/hosts, outside"), ("../../x", "outside"), ("a/../..", "detour")],
)
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str, sentence: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(BadInput, match=sentence):
        pack(tmp_path, ["link"])


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(4_100_000)
    paths = write(tmp_path, {"small.py": b"x", "noise.bin": noise})
    with pytest.raises(BadInput, match=r"4\.0 MB.*noise\.bin.*4\.1 MB"):
        pack(tmp_path, paths)
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(MAX_UNPACKED_BYTES)
    with pytest.raises(BadInput, match=r"33\.6 MB.*huge\.bin.*--claim"):
        pack(tmp_path, ["huge.bin"])
    with pytest.raises(BadInput, match="files are over 10000"):
        pack(tmp_path, [f"{number}" for number in range(MAX_CODE_FILES + 1)])


def test_what_the_archive_has_no_room_for_is_refused(tmp_path: Path) -> None:
    long = "/".join(["d" * 90] * 3) + "/x.py"
    write(tmp_path, {long: b""})
    (tmp_path / "link").symlink_to("x" * 101)
    (tmp_path / os.fsdecode(b"\xff.py")).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path, sentence in (
        (long, "too long"),
        ("link", "too long"),
        (os.fsdecode(b"\xff.py"), "not UTF-8"),
        ("pipe", "neither a file nor a link"),
    ):
        with pytest.raises(BadInput, match=sentence):
            pack(tmp_path, [path])
    with pytest.raises(BadInput, match="git lists no file"):
        pack(tmp_path, [])
