"""Folders as Hugging Face lays them out below a prefix of a bucket."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drumline_contract import BUCKET_SCHEMES
from drumline_contract.buckets.path import BucketPath, any_path
from drumline_contract.config import ModelConfig, TrainerConfig
from drumline_trainer.data.codec import codec_of
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    load_hugging_face,
    weights_digest,
)
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.ranges import read_header
from tests.store_proxy import Proxy
from tests.unit.trainer.data.records.conversations import write_chat_model

MODEL = ModelConfig(layers=2, hidden_size=32, ffn_size=64, heads=4, kv_heads=2, vocab_size=320)
RANKS = 2


def bucket_path(url: str) -> BucketPath:
    path = any_path(url)
    assert isinstance(path, BucketPath)
    return path


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    module = build_on_meta(MODEL).to_empty(device="cpu")
    initialize(module, seed=3)
    return {name: weight.detach() for name, weight in module.named_parameters()}


@pytest.fixture
def model(url: str, weights: dict[str, torch.Tensor], tmp_path: Path) -> BucketPath:
    """In several files, with a tokenizer; and the same in a folder `model`."""
    folder = write_chat_model(tmp_path / "model")
    export_hugging_face(weights, MODEL, folder, max_file_bytes=20_000)
    place = bucket_path(f"{url}/model")
    for file in folder.iterdir():
        (place / file.name).write(file.read_bytes())
    return place


def slices_of(rank: int) -> list[TensorSlice]:
    """The rows of one of the ranks."""
    held: list[TensorSlice] = []
    for name, shape in our_shapes(MODEL).items():
        rows = shape[0] // RANKS
        box = Box(offsets=(rows * rank, *[0] * (len(shape) - 1)), shape=(rows, *shape[1:]))
        held.append(
            TensorSlice(name=name, shape=shape, box=box, tensor=torch.full(box.shape, torch.nan))
        )
    return held


def test_each_rank_fetches_its_rows_and_no_others(
    model: BucketPath, weights: dict[str, torch.Tensor], proxy: Proxy
) -> None:
    for rank in range(RANKS):
        proxy.seen.clear()
        slices = slices_of(rank)
        load_hugging_face(model, slices, config=MODEL)
        for part in slices:
            whole = weights[part.name]
            begin = part.box.offsets[0]
            assert torch.equal(part.tensor, whole[begin : begin + part.box.shape[0]]), part.name
        asked = [(each.key, each.range) for each in proxy.seen if each.range]
        data = [each for each in asked if not each[1].startswith("bytes=0-")]  # no headers
        assert len(data) == len(set(data)) == len(slices)
        lengths = [re.fullmatch(r"bytes=(\d+)-(\d+)", span) for _, span in data]
        fetched = sum(int(each[2]) - int(each[1]) + 1 for each in lengths if each)
        assert fetched == sum(part.tensor.numel() * 4 for part in slices)


def test_the_same_weights_have_the_same_identity(model: BucketPath, tmp_path: Path) -> None:
    assert weights_digest(model) == weights_digest(tmp_path / "model")


def test_the_tokenizer_and_the_chat_template_are_those_in_the_bucket(
    model: BucketPath, tmp_path: Path
) -> None:
    codecs = [
        codec_of(TrainerConfig(model=MODEL, model_from=str(place)), chat=True)
        for place in (model, tmp_path / "model")
    ]
    asked = [codec.encode("Where is Rome?") for codec in codecs]
    assert asked[0] == asked[1]
    assert codecs[0].stops == codecs[1].stops != frozenset()


def test_what_is_missing_is_the_folders_fault(model: BucketPath) -> None:
    (model / "model.safetensors.index.json").unlink()
    with pytest.raises(HuggingFaceError, match=r"model/model\.safetensors"):
        weights_digest(model)
    (model / "config.json").unlink()
    with pytest.raises(HuggingFaceError, match=r"model/config\.json"):
        load_hugging_face(model, [], config=MODEL)


def test_what_is_larger_than_any_file_of_its_kind_is_not_read(model: BucketPath) -> None:
    with pytest.raises(OSError, match="larger than 9 bytes"):
        (model / "config.json").read(limit=9)


def test_a_process_that_has_asked_which_model_it_is_may_fork(model: BucketPath) -> None:
    """The library's calls never return in a child of a process that has made one."""
    program = (
        "import os, sys\n"
        "from drumline_contract.shapes.hugging_face import model_folder, with_model_of_folder\n"
        "raw = with_model_of_folder({'model_from': sys.argv[1]})\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "read = (model_folder(sys.argv[1]) / 'config.json').exists()\n"
        "os._exit(0 if read and raw['model']['layers'] == 2 else 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(model)], check=False, timeout=300)
    assert done.returncode == 0


def test_paths_go_down_and_up(url: str) -> None:
    place = bucket_path(f"{url}/a")
    assert str(place / "b.json") == f"{url}/a/b.json"
    assert (place / "b.json").name == "b.json"
    assert str((place / "b.json").parent) == str(place)
    assert not (place / "b.json").is_file()
    (place / "b.json").write(json.dumps({}).encode())
    assert (place / "b.json").is_file()
    (place / "b.json").unlink()
    (place / "b.json").unlink()
    assert not (place / "b.json").exists()
    assert url.startswith(BUCKET_SCHEMES)
    assert isinstance(any_path("models/llama"), Path)


def test_headers_are_those_of_the_folder(model: BucketPath, tmp_path: Path) -> None:
    name = min(file.name for file in (tmp_path / "model").glob("*.safetensors"))
    assert read_header(model / name) == read_header(tmp_path / "model" / name)
