from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.data.dataset import IGNORED, Dataset
from drumline_trainer.data.mixture import ROUND, MixtureDataset, dealt
from drumline_trainer.data.run_data import RunData, open_run_data
from tests.texts import missing
from tests.unit.trainer.data.records.conversations import (
    conversation,
    write_chat_model,
    write_lines,
)

SIZES = {"few": 3, "many": 40}
"""Windows of one byte, another one for each folder."""
LENGTH = 8


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for letter, (name, windows) in zip(b"fm", SIZES.items(), strict=True):
        (tmp_path / name).mkdir()
        numbered = b"".join(bytes([letter, number]) * (LENGTH // 2) for number in range(windows))
        (tmp_path / name / "a.txt").write_bytes(numbered + bytes([letter]))
    return tmp_path


def opened(source: Path, mixture: str, *, length: int = LENGTH, **changes: Any) -> RunData:
    data = {"source": str(source), "pattern": "*", "sequence_length": length, "mixture": mixture}
    return open_run_data(TrainerConfig.from_dict({"data": data, **changes}))


def seen(dataset: Dataset, samples: range) -> Counter[tuple[str, int]]:
    """Folder and window of each sample."""
    rows = dataset.batch(samples).inputs[:, :2].tolist()
    return Counter((chr(letter), number) for letter, number in rows)


def test_each_round_has_the_shares_and_each_part_its_epochs(source: Path) -> None:
    dataset = opened(source, "few=0.25, many=0.75").training
    counts = seen(dataset, range(ROUND))
    assert sum(n for (letter, _), n in counts.items() if letter == "f") == ROUND // 4
    for letter, share, windows in (("f", 0.25, 3), ("m", 0.75, 40)):
        epochs = int(ROUND * share) // windows
        own = [counts[letter, number] for number in range(windows)]
        assert {*own} <= {epochs, epochs + 1}
    assert seen(dataset, range(ROUND, 2 * ROUND)).total() == ROUND


def test_epochs_of_each_part_for_one_of_the_whole(source: Path) -> None:
    dataset = opened(source, "few=2x,many=0.5x").training
    assert isinstance(dataset, MixtureDataset)
    share = 2 * 3 / (2 * 3 + 0.5 * 40)
    assert dataset.counts == (round(share * ROUND), ROUND - round(share * ROUND))
    assert not missing(dataset.notes()[1], "23.1%", "3 windows", "13")


def test_any_slice_is_that_of_the_whole_order(source: Path) -> None:
    dataset = opened(source, "few=1,many=2").training
    whole = dataset.batch(range(200)).inputs
    pieces = [dataset.batch(range(n, n + 25)).inputs for n in range(0, 200, 25)]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert dataset.target_count(range(200)) == 200 * LENGTH
    other = opened(source, "few=1,many=2", seed=5).training
    assert not np.array_equal(whole, other.batch(range(200)).inputs)
    assert dataset.fingerprint() != opened(source, "few=1,many=3").training.fingerprint()


def test_what_is_held_out_is_of_all_parts_and_never_trained_on(source: Path) -> None:
    data = opened(source, "few=1,many=1", evaluation={"share": 0.3})
    assert data.held_out is not None
    held_out = set(seen(data.held_out, range(data.held_out.count)))
    assert Counter(letter for letter, _ in held_out) == {"f": 1, "m": 12}
    trained = set(seen(data.training, range(ROUND)))
    assert len(trained) == 43 - 13
    assert not trained & held_out


def test_nothing_of_a_small_part_is_held_out_rather_than_all(source: Path) -> None:
    data = opened(source, "few=1,many=1", evaluation={"share": 0.1})
    assert data.held_out is not None
    assert {letter for letter, _ in seen(data.held_out, range(data.held_out.count))} == {"m"}
    assert {("f", number) for number in range(3)} <= set(seen(data.training, range(ROUND)))


def test_texts_beside_conversations_are_whole_documents_too(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model")
    write_lines(tmp_path / "chats" / "a.jsonl", [conversation(n) for n in range(9)])
    write_lines(tmp_path / "texts" / "a.jsonl", [{"text": "Some words."} for _ in range(9)])
    dataset = opened(
        tmp_path,
        "chats=1,texts=1",
        length=64,
        model_from=str(model),
        model={"vocab_size": 320},
    ).training
    batch = dataset.batch(range(40))
    assert batch.documents is not None
    assert batch.documents.shape == (40, 64)
    assert dataset.target_count(range(40)) == int((batch.targets != IGNORED).sum())


def test_a_share_below_one_in_a_round_is_refused() -> None:
    assert sum(dealt([1 / 3] * 3, names="abc")) == ROUND
    with pytest.raises(ConfigError, match=r"0\.0001.*1"):
        dealt([0.9999, 0.0001], names="ab")


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ("few", "must be folders below data.source with amounts"),
        ("few=1", "mixes 2 to 64 folders, not 1"),
        ("few=1,many=2x", "all amounts are weights, or all are epochs"),
        ("few=1,few=2", "names a folder twice"),
        ("few=0,many=1", "few has no part in it"),
        ("../few=1,many=1", "must not contain '..'"),
        ("/few=1,many=1", "must be folders below"),
        ("few=1," * 2000, "at most 4096 characters"),
    ],
)
def test_what_is_no_mixture_is_refused(mixture: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.mixture: ") as caught:
        TrainerConfig.from_dict({"data": {"source": "/data", "mixture": mixture}})
    assert words in str(caught.value)


def test_a_folder_that_is_absent_is_named(source: Path) -> None:
    with pytest.raises(ConfigError, match="none is not a folder"):
        opened(source, "few=1,none=1")
