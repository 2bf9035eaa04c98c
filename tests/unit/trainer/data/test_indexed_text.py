"""Indexed datasets of Megatron-LM, read where they lie."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from drumline_contract.config import ConfigError, DataConfig, ModelConfig
from drumline_contract.config.data import Packing
from drumline_trainer.data.corpus import CorpusChangedError
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.indexed_text import IndexedTextError
from drumline_trainer.data.sources import open_dataset
from tests.texts import missing

VOCABULARY = 400
CODES = {"<u1": 1, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}


def write(
    folder: Path,
    name: str,
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    type: str = "<u2",  # noqa: A002 - as the format calls it
) -> Path:
    """Documents of sequences of tokens, laid out as in the module's docstring."""
    sequences = [sequence for document in documents for sequence in document]
    width = np.dtype(type).itemsize
    lengths = [len(sequence) for sequence in sequences]
    begins = [0, *accumulate(lengths)]
    firsts = [0, *accumulate(len(document) for document in documents)]
    (folder / f"{name}.bin").write_bytes(
        b"".join(np.array(sequence, dtype=type).tobytes() for sequence in sequences)
    )
    path = folder / f"{name}.idx"
    path.write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[type], len(sequences), len(firsts))
        + np.array(lengths, dtype="<i4").tobytes()
        + (np.array(begins[:-1], dtype="<i8") * width).tobytes()
        + np.array(firsts, dtype="<i8").tobytes()
    )
    return path


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    """Three documents, the second of two sequences; an empty one; a second file."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(tokenizer))  # noqa: S106 - a word
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder, "a", [[range(1, 6)], [range(6, 9), range(9, 12)], [[]], [range(12, 16)]])
    write(folder, "b", [[range(300, 307)]])
    return DataConfig(source=str(folder), sequence_length=7, tokenizer=str(tokenizer))


def refused(config: DataConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        open_dataset(config, seed=0)
    return str(caught.value)


def text_of(config: DataConfig) -> object:
    return open_dataset(config, seed=0).text  # pyright: ignore[reportAttributeAccessIssue]


def test_all_files_of_a_folder_lie_end_to_end(config: DataConfig) -> None:
    text = text_of(config)
    expected = [*range(1, 16), *range(300, 307)]
    assert text.size == len(expected)
    assert text.tokens(0, text.size).tolist() == expected
    assert text.tokens(13, 4).tolist() == [14, 15, 300, 301]
    assert text.document_ends().tolist() == [5, 11, 15, 22]
    assert text.document_starts(0, 22).tolist() == [0, 5, 11, 15]
    assert text.document_starts(5, 15).tolist() == [5, 11]


@pytest.mark.parametrize("suffix", ["", ".idx"])
def test_one_is_named_with_or_without_its_ending(config: DataConfig, suffix: str) -> None:
    text = text_of(replace(config, source=f"{config.source}/b{suffix}", sequence_length=3))
    assert text.tokens(0, text.size).tolist() == [*range(300, 307)]


@pytest.mark.parametrize("type", CODES)
def test_every_type_of_token_is_read(config: DataConfig, tmp_path: Path, type: str) -> None:  # noqa: A002 - as the format calls it
    (tmp_path / "typed").mkdir()
    write(tmp_path / "typed", "c", [[range(20, 120)]], type=type)
    text = text_of(replace(config, source=str(tmp_path / "typed")))
    assert text.tokens(0, 100).tolist() == [*range(20, 120)]


def test_documents_are_packed_and_models_checked_as_with_shards(config: DataConfig) -> None:
    dataset = open_dataset(replace(config, packing=Packing.DOCUMENTS), seed=0)
    batch = dataset.batch(range(dataset.windows))
    begins = {1, 6, 12, 300}  # the first token of a document is predicted from nothing
    assert not begins & set(batch.targets.flatten().tolist())
    assert (batch.targets == IGNORED).any()
    dataset.check_model(ModelConfig(vocab_size=VOCABULARY))
    with pytest.raises(ConfigError, match=r"256.*400 tokens"):
        dataset.check_model(ModelConfig(vocab_size=256))


def test_a_mixture_of_them_is_one_source(config: DataConfig) -> None:
    source = str(Path(config.source))
    mixed = replace(config, source=source, mixture="a=0.5,b=0.5", sequence_length=3)
    assert open_dataset(mixed, seed=0).windows == 4 + 2


def test_a_token_of_another_tokenizer_ends_the_run(config: DataConfig) -> None:
    write(Path(config.source), "b", [[[300, VOCABULARY]]])
    text = text_of(config)
    assert text.tokens(0, 16)[-1] == 300
    with pytest.raises(IndexedTextError, match=r"token 400.*16"):
        text.tokens(16, 1)


def test_a_file_that_changes_is_an_error_and_another_fingerprint(config: DataConfig) -> None:
    text, before = text_of(config), text_of(config).fingerprint()
    path = Path(config.source) / "b.bin"
    content = bytearray(path.read_bytes())
    content[0] += 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorpusChangedError):
        text.tokens(15, 2)
    assert text_of(config).fingerprint() != before


def test_without_a_tokenizer_it_is_refused(config: DataConfig) -> None:
    assert "does not say of which tokenizer" in refused(replace(config, tokenizer=None))


def test_files_of_different_types_are_refused(config: DataConfig) -> None:
    write(Path(config.source), "c", [[[1, 2]]], type="<i4")
    assert not missing(refused(config), "int32", "uint16")


@pytest.mark.parametrize(
    ("start", "new", "sentence"),
    [
        (9, struct.pack("<Q", 2), "its version is 2, not 1"),
        (17, b"\x07", "its tokens are of type 7"),
        (18, struct.pack("<Q", 1 << 62), "its counts say"),
        (26, struct.pack("<Q", 1 << 60), "its counts say"),
        (26, struct.pack("<Q", 0), "not all of its sequences in order"),
        (34, struct.pack("<i", -5), "do not lie end to end"),
        (38, struct.pack("<q", 2), "do not lie end to end"),
        (46, struct.pack("<q", 1), "not all of its sequences in order"),
    ],
)
def test_a_damaged_index_is_refused(
    config: DataConfig, start: int, new: bytes, sentence: str
) -> None:
    path = Path(config.source) / "b.idx"  # one sequence, one document
    content = bytearray(path.read_bytes())
    content[start : start + len(new)] = new
    path.write_bytes(content)
    assert sentence in refused(config)


def test_an_index_of_another_file_is_refused(config: DataConfig) -> None:
    path = Path(config.source) / "b.bin"
    path.write_bytes(path.read_bytes()[:-2])
    assert not missing(refused(config), "b.idx", "b.bin", "14 bytes", "12")
    path.unlink()
    assert "b.bin: No such file" in refused(config)


def test_a_header_that_ends_is_refused(config: DataConfig) -> None:
    path = Path(config.source) / "b.idx"
    path.write_bytes(path.read_bytes()[:20])
    assert not missing(refused(config), "20 bytes")
