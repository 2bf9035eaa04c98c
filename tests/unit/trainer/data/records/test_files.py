"""Files of records that a person has to mend, and storage that may come back by itself."""

from __future__ import annotations

import errno
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.data import tar_samples
from drumline_trainer.data.records import files
from drumline_trainer.data.records.files import read_records, uncompressed_bytes
from tests.unit.trainer.data.tars import write_tar

FAILING = "/proc/self/mem"
"""Whose first byte is an I/O error, as that of a claim whose server is gone."""


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz"])
def test_storage_that_fails_is_no_wrong_configuration(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to(FAILING)
    with pytest.raises(OSError, match="Input/output error") as lost:
        list(read_records(path, offset=0))
    assert lost.value.errno == errno.EIO


def test_storage_that_fails_while_records_are_measured_is_none_either(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.symlink_to(FAILING)
    with pytest.raises(OSError, match="Input/output error"):
        uncompressed_bytes(path, most=100)


def test_storage_that_fails_beneath_a_tar_is_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(io.FileIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.ESTALE, "Stale file handle")

    path = write_tar(tmp_path / "a.tar", [("1.txt", b"text")])
    monkeypatch.setattr(tar_samples, "open_regular", Lost)
    with pytest.raises(OSError, match="Stale file handle"):
        list(read_records(path, offset=0))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.tar", "a.json"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    for act in (read_records, uncompressed_bytes):
        with pytest.raises(ConfigError, match=r"data\.source: .*a pointer of Git LFS"):
            list(read_records(tmp_path / name, offset=0)) if act is read_records else act(
                tmp_path / name, most=9
            )


def test_lines_that_are_compressed_are_named_by_their_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    with pytest.raises(ConfigError, match=r"a\.jsonl is gzip"):
        list(read_records(tmp_path / "a.jsonl", offset=0))


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b'{"text": "x"}\n')[:-9]])
def test_what_is_no_whole_gzip_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.jsonl\.gz: "):
        list(read_records(path, offset=0))


@pytest.mark.parametrize("content", ["{%s}", "[{%s}]", '{"messages": [{%s}]}'])
def test_a_key_that_a_record_has_twice_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content % '"content": "first", "content": "second"')
    with pytest.raises(ConfigError, match=r"a\.json.*: the key 'content' is written twice"):
        list(read_records(path, offset=0))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_is_as_long_as_a_record_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    line = b'{"text": "%s"}\n' % (b"x" * 100)
    path = tmp_path / name
    content = b"{}\n" + line
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    monkeypatch.setattr(files, "_MAX_RECORD_BYTES", len(line))
    assert [each.after for each in read_records(path, offset=0)] == [3, len(content)]
    monkeypatch.setattr(files, "_MAX_RECORD_BYTES", len(line) - 1)
    with pytest.raises(ConfigError, match=f"at byte 3 is longer than {len(line) - 1} bytes"):
        list(read_records(path, offset=0))
