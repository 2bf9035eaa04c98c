from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from drumline_trainer.checkpoint.digests import Algorithm
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.shard_file import read_bounded, verify_file, write_shard_file


def test_the_library_reads_what_we_write_and_the_digest_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {
        "plain": torch.arange(6, dtype=torch.float32).view(2, 3),
        "transposed": torch.arange(6, dtype=torch.float32).view(2, 3).t(),
        "half": torch.tensor([1.5, -2.0, float("nan")], dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "large": torch.rand(5_000_000),  # more than one chunk
    }
    record = write_shard_file(path, tensors)
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0, equal_nan=True)
    body = path.read_bytes()
    assert record == FileRecord(size_bytes=len(body), digest=xxhash.xxh3_128_hexdigest(body))
    verify_file(path, record)


def test_files_of_manifests_with_sha256_still_verify(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    digest = hashlib.sha256(b"old").hexdigest()
    verify_file(path, FileRecord(size_bytes=3, digest=digest, algorithm=Algorithm.SHA256))
    with pytest.raises(CorruptCheckpointError, match="digest differs"):
        verify_file(path, FileRecord(size_bytes=3, digest="0" * 64, algorithm=Algorithm.SHA256))


def test_a_rank_without_elements_writes_a_file_all_the_same(tmp_path: Path) -> None:
    record = write_shard_file(tmp_path / "empty.safetensors", {})
    assert load_file(tmp_path / "empty.safetensors") == {}
    verify_file(tmp_path / "empty.safetensors", record)


def made(path: Path, kind: str) -> None:
    match kind:
        case "link":
            (path.parent / "elsewhere").write_bytes(b"x")
            path.symlink_to(path.parent / "elsewhere")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "absent":
            pass


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "absent"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    made(path, kind)
    expected = FileRecord(size_bytes=1, digest=xxhash.xxh3_128_hexdigest(b"x"))
    with pytest.raises(CorruptCheckpointError, match="file: "):
        verify_file(path, expected)
    with pytest.raises(CorruptCheckpointError, match="file: "):
        read_bounded(path, limit=10)


def test_small_files_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(CorruptCheckpointError, match="larger than 4 bytes"):
        read_bounded(tmp_path / "file", limit=4)


class Trap:
    """Unpickling this runs code."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, ("trapped",)


def test_a_pickle_in_disguise_is_bytes_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = pickle.dumps(Trap())
    (tmp_path / "file").write_bytes(body)
    with pytest.raises(CorruptCheckpointError, match="digest differs"):
        verify_file(tmp_path / "file", FileRecord(size_bytes=len(body), digest="0" * 32))
    assert not (tmp_path / "trapped").exists()
