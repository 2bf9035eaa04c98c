"""A stranger's file is refused before a byte of it is unpacked."""

from __future__ import annotations

import io
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline_contract import sign
from drumline_trainer.compiled_kernels import archive
from drumline_trainer.compiled_kernels.archive import RefusedError, seal, unseal

KEY, PROGRAM = b"k" * 32, "abc/0-0.kernels"
LATER = 2**62
"""Nothing was written since."""
FILES = {"fxgraph/ab/graph": b"graph", "x/lib.so": bytes(range(256)) * 40, "x/empty": b""}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return a_folder(tmp_path / "made", FILES)


def a_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_folder_comes_back(made: Path, tmp_path: Path) -> None:
    unseal(
        seal(made, program=PROGRAM, key=KEY, began_ns=LATER),
        tmp_path / "back",
        program=PROGRAM,
        key=KEY,
    )
    assert files_in(tmp_path / "back") == FILES


def test_locks_and_what_is_being_written_are_left_out(made: Path, tmp_path: Path) -> None:
    a_folder(made, {"locks/a.lock": b"", "x/.12.34.tmp": b"half"})
    unseal(
        seal(made, program=PROGRAM, key=KEY, began_ns=LATER),
        tmp_path / "back",
        program=PROGRAM,
        key=KEY,
    )
    assert files_in(tmp_path / "back") == FILES


def test_a_library_that_is_being_linked_is_left_out(made: Path, tmp_path: Path) -> None:
    a_folder(made, {"x/half.so": b"half"})
    began_ns = (made / "x/half.so").stat().st_mtime_ns
    for name in FILES:
        os.utime(made / name, ns=(began_ns - 1, began_ns - 1))
    sealed = seal(made, program=PROGRAM, key=KEY, began_ns=began_ns)
    unseal(sealed, tmp_path / "back", program=PROGRAM, key=KEY)
    assert files_in(tmp_path / "back") == FILES


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a file": lambda sealed: sealed[:-40] + bytes([sealed[-40] ^ 1]) + sealed[-39:],
    "a bit of the signature": lambda sealed: sealed[:30] + bytes([sealed[30] ^ 1]) + sealed[31:],
    "cut off": lambda sealed: sealed[:-1],
    "cut off in the signature": lambda sealed: sealed[:40],
    "longer": lambda sealed: sealed + b"\0",
    "another title": lambda sealed: b"x" + sealed,
    "signature that is not text": lambda sealed: sealed[:28] + b"\xff" * 64 + sealed[92:],
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_refused(change: str, made: Path, tmp_path: Path) -> None:
    sealed = seal(made, program=PROGRAM, key=KEY, began_ns=LATER)
    assert CHANGES[change](sealed) != sealed
    with pytest.raises(RefusedError):
        unseal(CHANGES[change](sealed), tmp_path / "back", program=PROGRAM, key=KEY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize(("key", "program"), [(b"o" * 32, PROGRAM), (KEY, "abd/0-0.kernels")])
def test_another_key_and_another_program_are_refused(
    key: bytes, program: str, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="signature"):
        unseal(
            seal(made, program=PROGRAM, key=KEY, began_ns=LATER),
            tmp_path / "b",
            program=program,
            key=key,
        )


def test_a_folder_that_has_files_already_stays_as_it_is(made: Path, tmp_path: Path) -> None:
    theirs = a_folder(tmp_path / "theirs", {"first": b"1"})
    unseal(seal(made, program=PROGRAM, key=KEY, began_ns=LATER), theirs, program=PROGRAM, key=KEY)
    assert files_in(theirs) == {"first": b"1"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["made", "theirs"]


def test_nothing_is_unpacked_outside_its_folder_even_if_it_was_signed(tmp_path: Path) -> None:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as packed:
        packed.writestr("../../outside", b"")
    signature = sign(KEY, PROGRAM.encode(), body.getvalue()).encode()
    sealed = b"drumline compiled kernels 1\n" + signature + b"\n" + body.getvalue()
    (tmp_path / "in").mkdir()
    unseal(sealed, tmp_path / "in" / "back", program=PROGRAM, key=KEY)
    assert files_in(tmp_path) == {"in/back/outside": b""}


def test_too_much_is_not_kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 100)
    with pytest.raises(RefusedError, match="more than"):
        seal(made, program=PROGRAM, key=KEY, began_ns=LATER)


def test_a_large_file_is_in_memory_once(tmp_path: Path) -> None:
    dice, size = random.Random(0), 64 << 17
    made = a_folder(tmp_path / "made", {f"{n}.so": dice.randbytes(1 << 17) for n in range(64)})
    tracemalloc.start()
    try:
        sealed = seal(made, program=PROGRAM, key=KEY, began_ns=LATER)
        assert tracemalloc.get_traced_memory()[1] < 1.7 * size
        tracemalloc.reset_peak()
        unseal(sealed, tmp_path / "back", program=PROGRAM, key=KEY)
        assert tracemalloc.get_traced_memory()[1] < 1.7 * size
    finally:
        tracemalloc.stop()
    assert files_in(tmp_path / "back") == files_in(made)
