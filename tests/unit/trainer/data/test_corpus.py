from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from drumline_contract.config import ConfigError, DataConfig
from drumline_trainer.data.corpus import CorpusChangedError, open_corpus, refuse_other_formats


def folder_config(folder: Path) -> DataConfig:
    return DataConfig(source=str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.py").write_bytes(b"bbb")
    (tmp_path / "a.py").write_bytes(b"aaaaa")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"not read")
    (tmp_path / "sub" / "c.py").write_bytes(b"cc")
    return tmp_path


def test_files_lie_end_to_end_in_order_of_their_paths(folder: Path) -> None:
    corpus = open_corpus(folder_config(folder))
    assert corpus.paths == ("a.py", "b.py", "sub/c.py")
    whole = b"aaaaabbbcc"
    assert corpus.size == len(whole)
    for start in range(len(whole)):
        for stop in range(start, len(whole) + 1):
            assert corpus.read(start, stop - start) == whole[start:stop]


def test_hidden_files_are_read_only_where_the_pattern_names_them(folder: Path) -> None:
    """So the files of a mounted ConfigMap are read once, and none of Git's or macOS's."""
    (folder / "..2026_11_30").mkdir()
    (folder / "..2026_11_30" / "d.py").write_bytes(b"d")
    (folder / "..data").symlink_to("..2026_11_30")
    (folder / "d.py").symlink_to("..data/d.py")
    (folder / "._a.py").write_bytes(b"Mac OS X")
    assert open_corpus(folder_config(folder)).paths == ("a.py", "b.py", "d.py", "sub/c.py")
    for pattern, paths in (("**/.*.py", ("._a.py",)), ("..2026*/*", ("..2026_11_30/d.py",))):
        assert open_corpus(DataConfig(source=str(folder), pattern=pattern)).paths == paths
    with pytest.raises(ConfigError, match=r"5.*'\*\*/\*\.py'"):
        open_corpus(DataConfig(source=str(folder), pattern="*.c"))


def test_a_pattern_that_fits_no_file_is_answered_with_one_that_does(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.jsonl", "deep/b.jsonl", "README.md"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"2.*'\*\*/\*\.jsonl'"):
        open_corpus(folder_config(tmp_path))


def test_a_folder_without_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"matches '\*\*/\*\.py'$"):
        open_corpus(folder_config(tmp_path))


def test_a_shrunk_file_is_an_error_and_not_another_sample(folder: Path) -> None:
    corpus = open_corpus(folder_config(folder))
    (folder / "b.py").write_bytes(b"b")
    with pytest.raises(CorpusChangedError, match=r"b\.py: shorter"):
        corpus.read(6, 2)
    (folder / "b.py").unlink()
    with pytest.raises(CorpusChangedError, match=r"b\.py: No such file"):
        corpus.read(6, 2)


def test_the_fingerprint_tells_texts_apart(folder: Path) -> None:
    before = open_corpus(folder_config(folder)).fingerprint()
    assert open_corpus(folder_config(folder)).fingerprint() == before
    (folder / "a.py").write_bytes(b"aaaaaa")
    assert open_corpus(folder_config(folder)).fingerprint() != before


def test_an_edit_of_the_same_size_is_an_error_and_another_fingerprint(folder: Path) -> None:
    corpus = open_corpus(folder_config(folder))
    before = corpus.fingerprint()
    changed_at = (folder / "b.py").stat().st_mtime_ns + 1_000_000
    (folder / "b.py").write_bytes(b"bXb")
    os.utime(folder / "b.py", ns=(changed_at, changed_at))
    with pytest.raises(CorpusChangedError, match=r"b\.py"):
        corpus.read(6, 2)
    assert corpus.read(0, 5) == b"aaaaa"
    assert open_corpus(folder_config(folder)).fingerprint() != before


def test_a_copy_of_the_same_text_has_the_same_fingerprint(folder: Path) -> None:
    before = open_corpus(folder_config(folder)).fingerprint()
    for name in ("a.py", "b.py", "sub/c.py"):
        os.utime(folder / name, ns=(1, 1))
    assert open_corpus(folder_config(folder)).fingerprint() == before


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.parquet", b"PAR1....", "Parquet"),
        ("a.tar", b"\0" * 257 + b"ustar\0" + b"\0" * 300, "tar"),
        ("a", b"\x89PNG\r\n", "PNG"),
        ("a.gz", b"\x1f\x8b\x08", "gzip"),
        ("a.txt", "text".encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'{"text": "a"}\n', "JSON lines"),
    ],
)
def test_what_is_no_text_is_not_read_as_bytes(
    folder: Path, name: str, content: bytes, kind: str
) -> None:
    everything = DataConfig(source=str(folder), pattern="**/*")
    refuse_other_formats(open_corpus(everything))
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"data.source: .*{name} is {kind}, and would be read"):
        refuse_other_formats(open_corpus(everything))


def test_the_standard_library_without_what_others_put_there() -> None:
    corpus = open_corpus(DataConfig())
    assert corpus.folder == Path(sysconfig.get_path("stdlib"))
    assert "argparse.py" in corpus.paths
    assert not any("site-packages" in path or "/test/" in f"/{path}" for path in corpus.paths)
    assert corpus.size > 1_000_000


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent", "data.source: .*absent is not a folder"), ("sub/deep", "data.pattern: no text")],
)
def test_no_text_is_a_configuration_error(folder: Path, name: str, message: str) -> None:
    (folder / "sub" / "deep").mkdir()
    with pytest.raises(ConfigError, match=message):
        open_corpus(folder_config(folder / name))
