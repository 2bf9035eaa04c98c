from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config import ConfigError
from drumline_trainer.data.shards import index as shard_index
from drumline_trainer.data.shards.folder_store import FolderShardStore
from drumline_trainer.data.shards.index import ShardIndex
from drumline_trainer.data.shards.text import ShardMismatchError, ShardText, open_shards
from drumline_trainer.data.shards.writer import ShardWriter

BLOCK_BYTES = 32


def write(folder: Path, shards: list[list[list[int]]], *, vocabulary: int = 500) -> None:
    """Shards of these documents, in blocks so small that most reads touch several."""
    kind = "uint16" if vocabulary <= 2**16 else "uint32"
    records = []
    for number, documents in enumerate(shards):
        with ShardWriter(folder, number, token_type=kind, block_bytes=BLOCK_BYTES) as writer:
            for document in documents:
                writer.add(document)
            records.append(writer.finish())
    index = ShardIndex(
        token_type=kind,
        vocabulary=vocabulary,
        tokenizer_sha256="0" * 64,
        end_of_text=None,
        block_bytes=BLOCK_BYTES,
        made_from="",
        shards=tuple(records),
    )
    (folder / "shards.json").write_bytes(index.encode())


def opened(folder: Path) -> ShardText:
    return open_shards(FolderShardStore(folder))


TOKEN = st.integers(0, 499)
SHARDS = st.lists(
    st.lists(st.lists(TOKEN, min_size=1, max_size=40), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=20)
@given(shards=SHARDS, wide=st.booleans(), data=st.data())
def test_any_piece_is_that_of_the_documents_end_to_end(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[list[int]]],
    wide: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    write(folder, shards, vocabulary=100_000 if wide else 500)
    text = opened(folder)
    documents = [document for shard in shards for document in shard]
    whole = [token for document in documents for token in document]
    starts = np.cumsum([0, *map(len, documents)])[:-1].tolist()
    assert text.size == len(whole)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    assert text.tokens(start, stop - start).tolist() == whole[start:stop]
    result = text.document_starts(start, stop).tolist()
    assert result == [place for place in starts if start <= place < stop]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    numbers = random.Random(0)
    write(tmp_path, [[numbers.choices(range(500), k=30) for _ in range(9)] for _ in range(3)])
    return tmp_path


def read_everything(folder: Path) -> None:
    text = opened(folder)
    text.tokens(0, text.size)
    text.document_starts(0, text.size)


def test_every_flipped_bit_and_every_cut_is_caught(folder: Path) -> None:
    numbers = random.Random(1)
    files = sorted(path for path in folder.iterdir() if path.name != "shards.json")
    for _ in range(200):
        file = numbers.choice(files)
        intact = file.read_bytes()
        at = numbers.randrange(len(intact))
        if numbers.random() < 0.5:
            damaged = intact[:at]
        else:
            damaged = bytearray(intact)
            damaged[at] ^= 1 << numbers.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(ShardMismatchError) as caught:
            read_everything(folder)
        assert str(caught.value).startswith("data.source: ")
        assert str(file) in str(caught.value)
        assert "SHA-256" in str(caught.value)
        file.write_bytes(intact)
    read_everything(folder)


def test_only_the_block_that_is_read_is_verified_and_once(folder: Path) -> None:
    file = folder / "shard-00000.bin"
    content = bytearray(file.read_bytes())
    content[BLOCK_BYTES] ^= 1
    text = opened(folder)
    text.tokens(0, BLOCK_BYTES // 2)
    with file.open("r+b") as opened_file:
        opened_file.write(content)
    text.tokens(0, BLOCK_BYTES // 2)
    with pytest.raises(ShardMismatchError, match="bytes 32 to 64"):
        text.tokens(BLOCK_BYTES // 2, 1)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "shard-00001.ends").unlink()
    with pytest.raises(ShardMismatchError, match=r"shard-00001\.ends.*36"):
        opened(folder)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [[[1, 2, 500]]], vocabulary=500)
    text = opened(tmp_path)
    assert text.tokens(0, 2).tolist() == [1, 2]
    with pytest.raises(ShardMismatchError, match="token 500"):
        text.tokens(1, 2)


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    write(tmp_path, [[[number]] for number in range(70)])
    text = opened(tmp_path)
    for _ in range(2):
        assert text.tokens(0, 70).tolist() == list(range(70))
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 64
    text.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_the_fingerprint_is_that_of_the_tokens(tmp_path: Path) -> None:
    result = []
    for name, token in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, [[[5, token]]])
        result.append(opened(tmp_path / name).fingerprint())
    assert result[0] == result[1] != result[2]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "other/1", "the format is 'other/1'"),
        (["tokens"], 7, "the totals are not those of the shards"),
        (["token_type"], "int8", "token_type 'int8' is neither"),
        (["vocabulary"], 70_000, "vocabulary 70000 does not fit uint16"),
        (["vocabulary"], "many", "'many' is not a whole number"),
        (["block_bytes"], 3, "block_bytes 3 is not a number of whole tokens"),
        (["block_bytes"], 64, "blocks have other than this many sums"),
        (["shards"], [], "there are no shards"),
        (["shards", 0, "tokens", "name"], "../secret", "'../secret' is not a plain file name"),
        (["shards", 0, "tokens", "sha256"], "12", "'12' is not a SHA-256"),
        (["shards", 0, "tokens", "bytes"], 0, "cannot hold 0 bytes"),
        (["shards", 0, "ends"], {}, "'name' is missing"),
    ],
)
def test_an_index_that_cannot_be_is_refused(
    folder: Path, path: list[str | int], value: object, message: str
) -> None:
    file = folder / shard_index.INDEX_FILE
    raw = json.loads(file.read_bytes())
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"data\.source") as caught:
        opened(folder)
    assert message in str(caught.value)


def test_no_json_is_no_index(folder: Path) -> None:
    for content in (b"", b"[]", b"\xff", b"[" * 100_000):
        (folder / shard_index.INDEX_FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="is not an index of token shards"):
            opened(folder)
