from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from drumline_contract.config import ConfigError
from drumline_trainer.data import record_text
from drumline_trainer.data import tokenize as module
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.document_reader import TextDocument
from drumline_trainer.data.shards.folder_store import FolderShardStore
from drumline_trainer.data.shards.text import open_shards
from drumline_trainer.data.tokenize import TokenizeOptions, main, tokenize
from tests.unit.trainer.data.shard_examples import END, order, text_of
from tests.unit.trainer.data.tars import write_tar


def silent(_: str) -> None: ...


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_shards_are_the_documents_in_order_each_with_its_end(tmp_path: Path) -> None:
    asked = order(tmp_path)
    index = tokenize(asked, print_line=silent)
    assert (index.documents, len(index.shards)) == (40, 5)
    assert index.token_bytes == 2
    tokenizer = Tokenizer.from_file(str(asked.tokenizer))
    end = tokenizer.token_to_id(END)
    assert index.end_of_text == end
    text = open_shards(FolderShardStore(asked.output))
    tokens = text.tokens(0, text.size)
    starts = text.document_starts(0, text.size).tolist()
    pieces = np.split(tokens, starts[1:])
    assert [tokenizer.decode(p[:-1].tolist()) for p in pieces] == [text_of(n) for n in range(40)]
    assert {int(piece[-1]) for piece in pieces} == {end}


def test_every_file_has_the_size_and_the_digest_of_the_index(tmp_path: Path) -> None:
    asked = order(tmp_path)
    index = tokenize(asked, print_line=silent)
    files = contents(asked.output)
    for record in (record for shard in index.shards for record in shard.files):
        assert len(files[record.name]) == record.bytes
        assert hashlib.sha256(files[record.name]).hexdigest() == record.sha256
    raw = json.loads(files["shards.json"])
    assert (raw["documents"], raw["tokens"]) == (index.documents, index.tokens)


def refused(asked: TokenizeOptions) -> str:
    with pytest.raises(ConfigError) as caught:
        tokenize(asked, print_line=silent)
    return str(caught.value)


@pytest.mark.parametrize("tar", [False, True])
@pytest.mark.parametrize("after", [0, 3, 12, 25, 39])
def test_interrupted_and_begun_again_it_makes_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, *, tar: bool
) -> None:
    asked = order(tmp_path)
    if tar:
        samples = [(f"{n}.txt", text_of(n).encode()) for n in range(40)]
        source = write_tar(tmp_path / "tars" / "a.tar", samples).parent
        asked = replace(asked, source=source, pattern="*.tar")
    tokenize(asked, print_line=silent)
    again = replace(asked, output=tmp_path / "again")
    monkeypatch.setattr(record_text, "BATCH_CHARACTERS", 1)  # one document at a time
    read_documents = record_text.read_documents

    def interrupted(corpus: Corpus, **arguments: Any) -> Iterator[TextDocument]:
        yield from itertools.islice(read_documents(corpus, **arguments), after)
        raise KeyboardInterrupt

    monkeypatch.setattr(record_text, "read_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokenize(again, print_line=silent)
    monkeypatch.setattr(record_text, "read_documents", read_documents)
    assert "shards.json" not in contents(again.output)
    said: list[str] = []
    tokenize(again, print_line=said.append)
    assert contents(again.output) == contents(asked.output)
    assert (after >= 12) == any("going on after" in line for line in said)


def test_lines_in_gzip_are_lines(tmp_path: Path) -> None:
    asked = order(tmp_path)
    lines = b"".join(json.dumps({"text": text_of(n)}).encode() + b"\n" for n in range(40))
    for name, content in (("plain.jsonl", lines), ("packed.jsonl.gz", gzip.compress(lines))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        whole = replace(asked, source=folder, pattern="*.jsonl*", output=tmp_path / f"{name}-out")
        tokenize(whole, print_line=silent)
    plain, packed = (contents(tmp_path / f"{n}-out") for n in ("plain.jsonl", "packed.jsonl.gz"))
    assert plain.pop("shards.json") != packed.pop("shards.json")
    assert plain == packed
    (tmp_path / "packed.jsonl.gz" / "packed.jsonl.gz").write_bytes(gzip.compress(lines)[:-20])
    assert "packed.jsonl.gz: Compressed file ended" in refused(
        replace(asked, source=tmp_path / "packed.jsonl.gz", pattern="*.gz", output=tmp_path / "c")
    )


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    asked = order(tmp_path)
    tokenize(asked, print_line=silent)
    before = contents(asked.output)
    said: list[str] = []
    tokenize(asked, print_line=said.append)
    assert "complete already" in said[0]
    assert contents(asked.output) == before


def test_another_order_s_output_is_refused(tmp_path: Path) -> None:
    asked = order(tmp_path)
    tokenize(asked, print_line=silent)
    with pytest.raises(ConfigError, match=r"output: .* of other text, another tokenizer or other"):
        tokenize(replace(asked, shard_tokens=50), print_line=silent)


def test_lines_of_jsonl_and_samples_of_tars_are_documents(tmp_path: Path) -> None:
    asked = order(tmp_path)
    tokenize(asked, print_line=silent)
    (tmp_path / "records").mkdir()
    lines = "".join(json.dumps({"text": text_of(n)}) + "\n\n" for n in range(40))
    (tmp_path / "records" / "a.jsonl").write_text(lines)
    samples = [(f"{n}.txt", text_of(n).encode()) for n in range(40)]
    write_tar(tmp_path / "records" / "a.tar", samples)
    for kind in ("jsonl", "tar"):
        other = replace(
            asked, source=tmp_path / "records", pattern=f"*.{kind}", output=tmp_path / kind
        )
        tokenize(other, print_line=silent)
        for name, content in contents(asked.output).items():
            if name.startswith("shard-"):
                assert (other.output / name).read_bytes() == content


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.txt", b"abc\xff", r"source: .*a\.txt is not UTF-8 at byte 3"),
        ("a.txt.gz", gzip.compress(b"text"), r"source: .*a\.txt\.gz is not text but gzip"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        ("a.csv", b"id,text\r\n1,Hello\r\n", r"a\.csv is a table of records"),
        ("a.TSV", b'"prompt"\t"completion"\nHow\tSo\n', r"a\.TSV is a table of records"),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"texts": 1}\n',
            r"at byte 14: .* is no JSON object with a field",
        ),
        ("a.jsonl", b'{"text": 1}\n', "with the fields 'text', has neither a text in 'text'"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    asked = order(tmp_path, files=0)
    (asked.source / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        tokenize(replace(asked, pattern="*"), print_line=silent)


def test_a_tokenizer_that_cannot_work_is_named(tmp_path: Path) -> None:
    asked = order(tmp_path)
    assert "is no token of" in refused(replace(asked, end_of_text="<none>"))
    assert "No such file" in refused(replace(asked, tokenizer=tmp_path / "absent.json"))
    (tmp_path / "broken.json").write_text("{}")
    assert "is not a tokenizer.json" in refused(replace(asked, tokenizer=tmp_path / "broken.json"))


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = order(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "install drumline[trainer-more]" in refused(asked)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    asked = order(tmp_path)
    messages: list[str] = []

    def second(_: str) -> None:
        if not messages:
            messages.append(refused(asked))

    tokenize(asked, print_line=silent)
    tokenize(asked, print_line=second)  # said while the folder is held
    assert "another process writes to" in messages[0]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = order(tmp_path)
    options = ["--source", str(asked.source), "--tokenizer", str(asked.tokenizer)]
    assert main([*options, "--output", str(asked.output), "--end-of-text", END]) == 0
    assert "40 documents, " in capsys.readouterr().err
    assert main([*options, "--output", str(asked.output)]) == 2
    assert "of other text, another tokenizer" in capsys.readouterr().err


def test_progress_shows_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PRINT_SECONDS", 0.0)
    said: list[str] = []
    tokenize(order(tmp_path), print_line=said.append)
    line = re.compile(r"(\d+\.\d)% of \d+ bytes, [\d,]+ tokens/s, (\d+) s left")
    shares = [float(match[1]) for match in map(line.fullmatch, said) if match]
    assert len(shares) == 40
    assert shares == sorted(shares)
    assert shares[-1] == 100.0
    assert said[-2].endswith(" 0 s left")
