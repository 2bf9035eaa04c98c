from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from drumline_contract.config import ConfigError, DataConfig
from drumline_contract.config.data import Packing
from drumline_trainer.data import record_text
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.document_dataset import DocumentDataset
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.splits import parts_of_card
from drumline_trainer.data.text_dataset import TextDataset
from drumline_trainer.data.tokenize import TokenizeOptions, tokenize
from tests.texts import missing
from tests.unit.trainer.data.records.conversations import (
    conversation,
    write_chat_model,
    write_lines,
)
from tests.unit.trainer.data.tars import write_tar


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_chat_model(tmp_path / "model")


def opened(source: Path, model: Path | None, **changes: Any) -> DocumentDataset | TextDataset:
    config = DataConfig(
        source=str(source), **{"pattern": "**/*.jsonl", "sequence_length": 64, **changes}
    )
    dataset = open_dataset(config, seed=1, model_folder=model)
    assert isinstance(dataset, DocumentDataset | TextDataset)
    return dataset


def refused(source: Path, model: Path | None, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        opened(source, model, **changes)
    return str(caught.value)


def learned(dataset: DocumentDataset | TextDataset, model: Path) -> list[str]:
    """What is learned of each document, sorted."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    batch = dataset.batch(range(dataset.windows))
    assert batch.documents is not None
    rows = zip(batch.targets, batch.documents, strict=True)
    return sorted(
        tokenizer.decode(own.tolist(), skip_special_tokens=False)
        for targets, documents in rows
        for number in np.unique(documents)
        if len(own := targets[(documents == number) & (targets != IGNORED)])
    )


RECORDS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "messages": (
        [conversation(0), conversation(1)],
        [
            "The capital of France is Paris.<|end|>It is Rome.<|end|>",
            "The capital of Italy is Rome.<|end|>",
        ],
    ),
    "conversations": (
        [
            {
                "conversations": [
                    {"from": "human", "value": "Where is Oslo?"},
                    {"from": "gpt", "value": "In Norway."},
                ]
            }
        ],
        ["In Norway.<|end|>"],
    ),
    "instructions": (
        [{"instruction": "Name it.", "input": "Italy", "output": "Rome"}],
        ["Rome<|end|>"],
    ),
    "completions": ([{"prompt": "1 + 1 = ", "completion": "2"}], ["2<|end|>"]),
    "completions of messages": (
        [
            {
                "prompt": [{"role": "user", "content": "1 + 1"}],
                "completion": [{"role": "assistant", "content": "2"}],
            }
        ],
        ["2<|end|>"],
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_what_is_learned_of_each_kind_of_record(tmp_path: Path, model: Path, kind: str) -> None:
    records, expected = RECORDS[kind]
    source = write_lines(tmp_path / "data" / "a.jsonl", records)
    assert learned(opened(source.parent, model), model) == expected
    assert learned(opened(source, model, packing=Packing.PADDED), model) == expected


def test_samples_of_a_tar_are_records(tmp_path: Path, model: Path) -> None:
    records = [conversation(number) for number in range(8)]
    lines = write_lines(tmp_path / "lines" / "a.jsonl", records)
    for number in range(2):
        members = [
            (f"{key:04}.{kind}", json.dumps(record).encode())
            for key, record in list(enumerate(records))[number::2]
            for kind in ("json", "png")
        ]
        write_tar(tmp_path / "tars" / f"{number}.tar", members)
    from_tars = opened(tmp_path / "tars", model, pattern="*.tar")
    assert learned(from_tars, model) == learned(opened(lines, model), model)


def test_a_text_of_a_tar_has_its_fields_beside_it(tmp_path: Path, model: Path) -> None:
    members = [("1.txt", b"A text."), ("2.json", b'{"url": "x"}'), ("2.txt", b"Another.")]
    source = write_tar(tmp_path / "a.tar", members)
    texts = opened(source, model, packing=Packing.PADDED)
    assert learned(texts, model) == [" text.<|end|>", "other.<|end|>"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("1.txt", b"x"), ("2.png", b"")], r"sample 2 of .*a\.tar has neither .json nor .txt"),
        ([("1.json", b'{"text": ""}'), ("1.txt", b"")], "has a text twice: in .txt, and in .json"),
        ([("1.json", b"[]")], r"sample 1 of .* is not a JSON object"),
        ([("1.txt", b"abc\xff")], "is not UTF-8 at byte 515"),
        ([("1.txt", b"x"), ("1.TXT", b"y")], r"sample 1 of .* has \.txt twice"),
    ],
)
def test_a_sample_that_is_no_record_is_named(
    tmp_path: Path, model: Path, members: list[tuple[str, bytes]], words: str
) -> None:
    assert re.search(words, refused(write_tar(tmp_path / "a.tar", members), model))


def test_texts_are_learned_whole_and_end_as_the_models_texts_do(
    tmp_path: Path, model: Path
) -> None:
    records = [{"body": f"Line {n} of a text."} for n in range(20)]
    source = write_lines(tmp_path / "data" / "a.jsonl", records)
    stream = opened(source, model, field="body", sequence_length=8)
    assert isinstance(stream, TextDataset)
    whole = opened(source, model, field="body", packing=Packing.WHOLE)
    assert learned(whole, model)[0].endswith(" 0 of a text.<|end|>")
    assert not missing(refused(source, model), "'body'", "'text'", "data.field")


def test_shards_of_the_same_records_give_the_same_samples(tmp_path: Path, model: Path) -> None:
    source = write_lines(
        tmp_path / "data" / "a.jsonl", [conversation(number) for number in range(30)]
    ).parent
    options = TokenizeOptions(
        source=source,
        pattern="*.jsonl",
        tokenizer=model / "tokenizer.json",
        output=tmp_path / "shards",
        shard_tokens=300,
    )
    index = tokenize(options, print_line=lambda _: None)
    assert len(index.shards) > 2
    assert tokenize(options, print_line=lambda _: None) == index
    direct, shards = opened(source, model), opened(tmp_path / "shards", model)
    samples = range(direct.windows)
    batches = direct.batch(samples), shards.batch(samples)
    assert np.array_equal(batches[0].inputs, batches[1].inputs)
    assert np.array_equal(batches[0].targets, batches[1].targets)
    assert learned(direct, model) == learned(shards, model)
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[1].content }}")
    with pytest.raises(ConfigError, match="other options"):
        tokenize(options, print_line=lambda _: None)


def test_edited_records_another_template_and_another_tokenizer_are_noticed(
    tmp_path: Path, model: Path
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [conversation(n) for n in range(4)])
    before = opened(source, model).fingerprint()
    assert opened(source, model).fingerprint() == before
    write_lines(source, [conversation(n) for n in (0, 1, 2, 4)])
    edited = opened(source, model).fingerprint()
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ m.content }}"
        "<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    (tmp_path / "other.jinja").write_text(template)
    other = opened(source, model, chat_template=str(tmp_path / "other.jinja")).fingerprint()
    assert len({before, edited, other}) == 3


def test_what_cannot_be_read_says_why(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "data" / "a.jsonl", [conversation(0), {"text": "a"}])
    message = refused(source, model)
    assert "a.jsonl at byte" in message
    assert "is no conversation, as the first one is" in message
    assert "it has 'text'" in message
    write_lines(source, [conversation(0)])
    assert not missing(refused(source, None), "tokenizer.json")
    assert "cuts conversations anywhere" in refused(source, model, packing=Packing.STREAM)
    (source.parent / "b.txt").write_text("text")
    assert not missing(refused(source.parent, model, pattern="*"), "jsonl.gz", "ndjson.gz", "b.txt")
    bare = write_chat_model(tmp_path / "bare", template=None)
    assert "has no chat template, as base models have none" in refused(source, bare)
    source.write_text('{"messages": [1]}\n')
    assert "message 1 is not an object" in refused(source, model)
    source.write_text('{"messages": }\n')
    assert not missing(refused(source, model), "byte 0", "JSON")
    source.write_text("[1]\n")
    assert not missing(refused(source, model), "byte 0", "JSON")
    monkeypatch.setattr(record_text, "MOST_BYTES", 3)
    assert "make token shards with python -m" in refused(source, model)


def test_absent_parts_of_a_data_set_are_said(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "data"
    for number in (0, 2):
        write_lines(folder / f"train-0000{number}-of-00003.jsonl", [conversation(number)])
    notes = opened(folder, model).notes()
    assert "2 of the 3 files train-*-of-00003.jsonl are read" in notes
    write_lines(folder / "train-00001-of-00003.jsonl", [conversation(1)])
    assert "files train" not in str(opened(folder, model).notes())


@pytest.mark.parametrize(
    ("folders", "said"),
    [("main socratic", True), ("main", False), ("train test", False), ("a/train b/train", True)],
)
def test_configurations_of_a_data_set_that_are_read_as_one_are_said(
    tmp_path: Path, model: Path, folders: str, said: bool
) -> None:
    for folder in folders.split():
        name = "train-00000-of-00001.jsonl" if "train" not in folders else "a-0-of-1.jsonl"
        write_lines(tmp_path / "data" / folder / name, [conversation(0)])
    notes = opened(tmp_path / "data", model).notes()
    assert any("2 folders have files of the same names" in note for note in notes) is said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.JSONL", '{"text": "One."}\n{"text": "Two."}\n'),
        ("a.Json", '[{"text": "One."}, {"text": "Two."}]'),
        ("a.json", '\n{"text": "One."}'),
        ("a.json", '{"text": "%s"}\n{"text": "Two."}\n' % ("One. " * 300_000)),
    ],
    ids=["capitals", "capitals of a list", "a line without an end", "a line of 1.5 MB"],
)
def test_records_are_none_of_the_text_of_their_json(
    tmp_path: Path, model: Path, name: str, content: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(content)
    text = opened(tmp_path / "data", model, pattern="*", sequence_length=2).text
    assert len(text.document_ends()) == content.count("text")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.decode(text.tokens(0, 4).tolist()).strip().startswith("One")


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonlines", ".JSONLINES"])
def test_lines_of_json_have_several_suffixes(tmp_path: Path, model: Path, suffix: str) -> None:
    write_lines(tmp_path / "data" / f"a{suffix}", [conversation(0)])
    assert len(learned(opened(tmp_path / "data", model, pattern="*"), model)) == 1


CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: "a*.jsonl"
  - split: test
    path:
    - ./b.jsonl  # held out
dataset_info:
- config_name: other
  data_files: a.jsonl
---
# A data set
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_splits_of_a_card_are_said_where_their_files_are_read_as_one(
    tmp_path: Path, model: Path, line_end: str
) -> None:
    folder = tmp_path / "data"
    for name in ("a.jsonl", "b.jsonl"):
        write_lines(folder / name, [conversation(0), conversation(1)])
    (folder / "README.md").write_text(CARD, newline=line_end)
    both = opened(folder, model, pattern="**/*")
    assert not missing(str(both.notes()), "main/train (a.jsonl), main/test (b.jsonl);")
    assert "README" not in str(opened(folder, model, pattern="a*").notes())
    (folder / "README.md").write_text(CARD.replace("configs:", "others:"))
    assert "README" not in str(opened(folder, model, pattern="**/*").notes())


@pytest.mark.parametrize(
    ("card", "parts"),
    [
        ("", {}),
        ("---\nconfigs:\n- data_files: x\n", {"default/train": ["x"]}),
        (
            "---\nconfigs:\n  - config_name: a\n    data_files:\n    - x\n    - 'y'\n---\nz",
            {"a/train": ["x", "y"]},
        ),
    ],
    ids=str,
)
def test_files_of_a_card_have_a_configuration_and_a_split(
    card: str, parts: dict[str, list[str]]
) -> None:
    assert parts_of_card(card) == parts


def test_what_lies_beside_a_data_set_is_left_out_and_one_split_is_asked_for(
    tmp_path: Path, model: Path
) -> None:
    folder = tmp_path / "data"
    for split in ("train", "test"):
        write_lines(folder / split / "a.jsonl", [conversation(0), conversation(1)])
        (folder / split / "state.json").write_text("{}")
    (folder / "README.md").write_text("A data set")
    both = opened(folder, model, pattern="**/*")
    assert len(learned(both, model)) == 4
    assert not missing(str(both.notes()), "several splits", "test/a.jsonl", "train/a.jsonl")
    alone = opened(folder, model, pattern="train/*")
    assert "several splits" not in str(alone.notes())
    options = TokenizeOptions(
        source=folder,
        pattern="**/*",
        tokenizer=model / "tokenizer.json",
        output=tmp_path / "shards",
    )
    lines: list[str] = []
    assert tokenize(options, print_line=lines.append).documents == 4
    assert "several splits" in str(lines)
    (folder / "dataset_dict.json").write_text("{}")
    message = refused(folder, model, pattern="**/*.jsonl")
    assert "with the splits test, train; name the folder of one, such as" in message
    assert len(learned(opened(folder / "train", model, pattern="**/*"), model)) == 2
