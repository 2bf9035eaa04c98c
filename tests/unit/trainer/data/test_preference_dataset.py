"""Pairs of answers as windows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from drumline_contract.config import ConfigError, DataConfig, TrainerConfig
from drumline_contract.config.data import Packing
from drumline_contract.layout_validation import ViolationReason, violations
from drumline_trainer.data import record_text as module
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.document_reader import TextDocument
from drumline_trainer.data.preference_dataset import PreferenceDataset
from drumline_trainer.data.run_data import open_run_data
from drumline_trainer.data.shards.index import INDEX_FILE, parse_index
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.tokenize import TokenizeOptions, tokenize
from tests.unit.trainer.data.records.conversations import (
    conversation,
    write_chat_model,
    write_lines,
)

ASKED = {"role": "user", "content": "Where is Oslo?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("In Norway.", "In Peru."))
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "texts": ({"prompt": "1 + 1 = ", "chosen": "2", "rejected": "30"}, ["2<|end|>", "30<|end|>"]),
    "messages": (
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        ["In Norway.<|end|>", "In Peru.<|end|>"],
    ),
    "whole conversations": (
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        ["In Norway.<|end|>", "In Peru.<|end|>"],
    ),
    "whole conversations beside their prompt": (
        {"prompt": "Where is Oslo?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        ["In Norway.<|end|>", "In Peru.<|end|>"],
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"))


def pair(number: int) -> dict[str, Any]:
    """The chosen answer is of `number` + 1 words, the rejected one of one."""
    return {"prompt": f"{number}: ", "chosen": "yes " * (number + 1), "rejected": "no"}


def opened(folder: Path, model: Path, records: list[dict[str, Any]], **changes: Any) -> Any:
    source = write_lines(folder / "pairs.jsonl", records)
    config = DataConfig(source=str(source), **{"sequence_length": 128, **changes})
    return open_dataset(config, seed=1, model_folder=model)


def answers(dataset: PreferenceDataset, model: Path) -> list[list[str]]:
    """What is learned of each document, window by window."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    batch = dataset.batch(range(dataset.windows))
    assert batch.documents is not None
    return [
        [
            tokenizer.decode(own.tolist(), skip_special_tokens=False)
            for number in np.unique(documents)
            if len(own := targets[(documents == number) & (targets != IGNORED)])
        ]
        for targets, documents in zip(batch.targets, batch.documents, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_two_documents_the_chosen_one_first(
    kind: str, model: Path, tmp_path: Path
) -> None:
    record, learned = KINDS[kind]
    dataset = opened(tmp_path, model, [record])
    assert isinstance(dataset, PreferenceDataset)
    assert answers(dataset, model) == [learned]
    assert dataset.target_count(range(1)) == 1


def test_pairs_share_windows_and_are_never_parted(model: Path, tmp_path: Path) -> None:
    records = [pair(number) for number in range(12)]
    dataset = opened(tmp_path, model, records, sequence_length=96)
    windows = answers(dataset, model)
    assert len(windows) < len(records)
    assert all(len(texts) % 2 == 0 for texts in windows)
    sides = [(texts[n], texts[n + 1]) for texts in windows for n in range(0, len(texts), 2)]
    assert sorted(map(len, (chosen for chosen, _ in sides))) == [
        len("yes " * (number + 1) + "<|end|>") for number in range(12)
    ]
    assert {rejected for _, rejected in sides} == {"no<|end|>"}
    assert dataset.target_count(range(dataset.windows)) == 12
    alone = opened(tmp_path, model, records, sequence_length=96, packing=Packing.PADDED)
    assert [len(texts) for texts in answers(alone, model)] == [2] * 12


def test_what_does_not_fit_or_says_nothing_is_left_out(model: Path, tmp_path: Path) -> None:
    records = [pair(0), pair(200), pair(1)]
    dataset = opened(tmp_path, model, records, sequence_length=64)
    assert sum(len(texts) for texts in answers(dataset, model)) == 4
    assert "data: 2 pairs in" in dataset.notes()[0]
    assert dataset.notes()[0].endswith("left out, as too long or without an answer: 1")
    with pytest.raises(ConfigError, match=r"1 pairs.*64 tokens"):
        opened(tmp_path, model, [pair(200)], sequence_length=64)


def test_records_of_other_kinds_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'prompt'.*'chosen'"):
        opened(tmp_path, model, [pair(0), conversation(0)])
    with pytest.raises(ConfigError, match="is no conversation, as the first one is"):
        opened(tmp_path, model, [conversation(0), pair(0)])
    with pytest.raises(ConfigError, match=r"'chosen'.*'rejected'.*'prompt'"):
        opened(tmp_path, model, [{"chosen": "yes", "rejected": "no"}])


def test_mixtures_hold_no_pairs(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_lines(tmp_path / name / "pairs.jsonl", [pair(0)])
    config = DataConfig(source=str(tmp_path), pattern="*.jsonl", mixture="a=1,b=1")
    with pytest.raises(ConfigError, match="pairs of answers are not mixed"):
        open_dataset(config, seed=1, model_folder=model)


def shards_of(records: list[dict[str, Any]], model: Path, folder: Path, **options: Any) -> Path:
    """Write them, make shards of them, and return the folder of the shards."""
    source, shards = write_lines(folder / "pairs" / "pairs.jsonl", records), folder / "shards"
    asked = TokenizeOptions(
        source=source.parent,
        pattern="*.jsonl",
        tokenizer=model / "tokenizer.json",
        output=shards,
        **options,
    )
    tokenize(asked, print_line=lambda _: None)
    return shards


def test_shards_of_pairs_are_what_the_records_are(model: Path, tmp_path: Path) -> None:
    records = [pair(number) for number in range(12)]
    plain = opened(tmp_path / "plain", model, records)
    shards = shards_of(records, model, tmp_path / "made", shard_tokens=40)
    assert len(list(shards.glob("*.bin"))) > 2
    dataset = open_dataset(DataConfig(source=str(shards), sequence_length=128), seed=1)
    assert isinstance(dataset, PreferenceDataset)
    assert dataset.notes() == plain.notes()
    assert answers(dataset, model) == answers(plain, model)


def test_shards_that_were_interrupted_part_no_pair(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [pair(number) for number in range(12)]
    whole = shards_of(records, model, tmp_path / "whole", shard_tokens=1)  # one pair a shard
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 1)  # one document at a time
    read_documents = module.read_documents

    def interrupted(corpus: Corpus, **arguments: Any) -> Iterator[TextDocument]:
        yield from itertools.islice(read_documents(corpus, **arguments), 7)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "read_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards_of(records, model, tmp_path / "again", shard_tokens=1)
    monkeypatch.setattr(module, "read_documents", read_documents)
    again = shards_of(records, model, tmp_path / "again", shard_tokens=1)
    names = sorted(path.name for path in whole.glob("shard*"))
    assert len(names) > 4 * 12
    assert names == sorted(path.name for path in again.glob("shard*"))
    for name in names:
        if name != INDEX_FILE:  # which has the digest of the folder's path
            assert (whole / name).read_bytes() == (again / name).read_bytes()


def test_a_trainer_that_knows_no_pairs_refuses_their_shards(model: Path, tmp_path: Path) -> None:
    index = json.loads((shards_of([pair(0)], model, tmp_path) / INDEX_FILE).read_bytes())
    assert index["format"] == "drumline-token-shards/3"
    assert "paired" not in index
    [shard] = index["shards"]
    half = {**shard, "ends": {**shard["ends"], "bytes": 4}}
    with pytest.raises(ConfigError, match="a shard of pairs has half a pair"):
        parse_index(json.dumps({**index, "shards": [half], "documents": 1}).encode(), where="x")


def test_pairs_and_dpo_belong_together(model: Path, tmp_path: Path) -> None:
    def run(record: dict[str, Any], **changes: Any) -> None:
        source = write_lines(tmp_path / "data.jsonl", [record])
        raw = {"data": {"source": str(source)}, "model_from": str(model), "lora": {}}
        open_run_data(TrainerConfig.from_dict({**raw, "model": {"vocab_size": 320}, **changes}))

    run(pair(0), dpo={})
    with pytest.raises(ConfigError, match=r"'chosen'.*'rejected'"):
        run(pair(0))
    with pytest.raises(ConfigError, match="'chosen'"):
        run(conversation(0), dpo={})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            {"lora": {"adapters_from": "/there"}, "model_from": "/model"},
            "leave out lora.adapters_from",
        ),
        ({"evaluation": {}}, "dpo: not with evaluation"),
        ({"model": {"experts": 4, "balance_weight": 0.01}}, "dpo: not with model.balance_weight"),
        ({"dpo": {"beta": 0.0}}, "dpo.beta: must be greater than 0"),
    ],
)
def test_what_dpo_does_not_work_with_is_refused(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainerConfig.from_dict({"dpo": {}, "lora": {}, **raw})


@pytest.mark.parametrize("axis", ["tensor", "context", "pipeline"])
def test_answers_are_not_cut(axis: str) -> None:
    raw = {"dpo": {}, "lora": {}, "parallelism": {axis: 2}}
    against = violations(TrainerConfig.from_dict(raw), world_size=2)
    assert [violation.reason for violation in against] == [ViolationReason.PREFERENCES]
    assert f"{axis} 2 cuts them" in against[0].text
