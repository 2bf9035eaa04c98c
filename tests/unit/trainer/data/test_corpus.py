from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from drumline_trainer.config import ConfigError, DataConfig
from drumline_trainer.data.corpus import CorpusChangedError, open_corpus


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
