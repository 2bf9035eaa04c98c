from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.run_data import RunData, open_run_data
from drumline_trainer.data.tokenize import tokenize
from tests.unit.trainer.data.shard_examples import order

LENGTH = 10


def data(folder: Path, *, seed: int = 0, **evaluation: Any) -> RunData:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(bytes(range(251)))
    (folder / "b.held").write_bytes(bytes(range(251, 200, -1)))
    config = {
        "data": {"source": str(folder), "pattern": "*.txt", "sequence_length": LENGTH},
        "evaluation": evaluation or None,
        "seed": seed,
    }
    return open_run_data(TrainerConfig.from_dict(config))


def first_tokens(dataset: Any, samples: range) -> set[int]:
    return set(dataset.batch(samples).inputs[:, 0].tolist())


def test_what_is_held_out_is_never_trained_on_whatever_the_seed(tmp_path: Path) -> None:
    held_out: list[set[int]] = []
    for seed in (0, 7):
        opened = data(tmp_path, seed=seed, share=0.2)
        assert opened.held_out is not None
        assert opened.held_out.count == 5
        held_out.append(first_tokens(opened.held_out, range(5)))
        trained = [first_tokens(opened.training, range(n, n + 20)) for n in (0, 20)]
        assert opened.training.epoch_samples == 20
        assert trained[0] == trained[1]  # an epoch each
        assert trained[0] | held_out[-1] == set(range(0, 250, LENGTH))
        assert len(trained[0]) == 20
    assert held_out[0] == held_out[1]
    order = [data(tmp_path, seed=s, share=0.2).training.batch(range(20)).inputs for s in (0, 7)]
    assert not np.array_equal(*order)


def test_nothing_is_held_out_where_the_run_does_not_evaluate(tmp_path: Path) -> None:
    opened = data(tmp_path)
    assert opened.held_out is None
    assert opened.training.epoch_samples == 25


def test_other_files_are_measured_on_whole(tmp_path: Path) -> None:
    opened = data(tmp_path, pattern="*.held")
    assert opened.training.epoch_samples == 25
    assert opened.held_out is not None
    assert first_tokens(opened.held_out, range(5)) == set(range(251, 201, -LENGTH))


@pytest.mark.parametrize(
    ("pattern", "measured", "words"),
    [("*.txt", "*.*t", "a.txt"), ("*", "*.held", "b.held"), ("**/*.held", "*", "b.held")],
)
def test_what_is_trained_on_is_not_measured(
    tmp_path: Path, pattern: str, measured: str, words: str
) -> None:
    data(tmp_path)
    config = {
        "data": {"source": str(tmp_path), "pattern": pattern, "sequence_length": LENGTH},
        "evaluation": {"pattern": measured},
    }
    with pytest.raises(
        ConfigError, match=r"^evaluation: .* trained on; .*evaluation\.source"
    ) as no:
        open_run_data(TrainerConfig.from_dict(config))
    assert words in str(no.value)


def test_shards_have_no_part_that_a_pattern_holds_out(tmp_path: Path) -> None:
    asked = order(tmp_path)
    tokenize(asked, print_line=lambda _: None)
    data = {"source": str(asked.output), "sequence_length": 16}
    model = {"vocab_size": 1024}
    config = {"model": model, "data": data, "evaluation": {"pattern": "shard-00001*"}}
    with pytest.raises(ConfigError, match=r"^evaluation: all of it is trained on"):
        open_run_data(TrainerConfig.from_dict(config))


@pytest.mark.parametrize(
    ("classes", "wrong"),
    [("ant bee cow", None), ("ant bee", None), ("bee cow", "bee"), ("ant bee dog", "dog")],
)
def test_folders_of_images_number_the_classes_as_in_training(
    tmp_path: Path, classes: str, wrong: str | None
) -> None:
    for place, names in (("train", "ant bee cow"), ("measured", classes)):
        for name in names.split():
            (tmp_path / place / name).mkdir(parents=True)
            shade = len(place) * 10
            Image.new("L", (8, 8), shade).save(tmp_path / place / name / "1.png")
    config = TrainerConfig.from_dict(
        {
            "model": {"family": "vit", "image_size": 8, "patch_size": 4, "classes": 3},
            "data": {"source": str(tmp_path / "train")},
            "evaluation": {"source": str(tmp_path / "measured")},
        }
    )
    if wrong is None:
        assert open_run_data(config).held_out is not None
        return
    with pytest.raises(ConfigError, match=rf"^evaluation\.source: the folder {wrong} is class"):
        open_run_data(config)


def test_a_last_batch_is_filled_with_samples_that_do_not_count(tmp_path: Path) -> None:
    opened = data(tmp_path, share=0.2).held_out
    assert opened is not None
    batch = opened.batch(range(3, 7))
    assert batch.inputs.shape == (4, LENGTH)
    assert (batch.targets[2:] == IGNORED).all()
    assert (batch.targets[:2] != IGNORED).all()
    assert opened.target_count(range(3, 7)) == 2 * LENGTH
    assert (opened.batch(range(8, 10)).targets == IGNORED).all()
    assert opened.target_count(range(8, 10)) == 0


def test_at_most_so_many_samples(tmp_path: Path) -> None:
    opened = data(tmp_path, share=0.4, samples=3).held_out
    assert opened is not None
    assert opened.count == 3
    assert replace(opened, count=10).target_count(range(10)) == 100


def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.share.*0\.01 of 25 windows"):
        data(tmp_path, share=0.01)
    with pytest.raises(ConfigError, match=r"evaluation\.share.*0.*1"):
        data(tmp_path, share=1.0)
