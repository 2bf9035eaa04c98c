"""Commands whose checkpoints and models lie in a bucket of a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drumline_contract import ExitCode
from drumline_contract.buckets.objects import ObjectBucket
from drumline_contract.buckets.path import any_path
from drumline_trainer.__main__ import main
from drumline_trainer.adapters.peft import read_peft, write_peft
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.models.hugging_face import import_hugging_face
from drumline_trainer.tensor_files.ranges import read_header
from tests.object_store import ObjectStore
from tests.store_proxy import Fate, Proxy, Request
from tests.texts import missing
from tests.unit.trainer.adapters.test_peft import LORA, MODEL, adapters
from tests.unit.trainer.adapters.test_peft import base as base  # noqa: PLC0414 - a fixture
from tests.unit.trainer.checkpoint.bucket.gang import opened
from tests.unit.trainer.test_main_export import CONFIG, stored

pytestmark = pytest.mark.extended(keep=4)

STEP = 3


@pytest.fixture
def weights(url: str, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Of the checkpoint that is committed in the bucket, and a folder `step-3`."""
    weights = stored(tmp_path / "step-3")
    storage = opened(url)
    storage.claim()
    files = storage.begin(STEP)
    files.write_small({file.name: file.read_bytes() for file in (tmp_path / "step-3").iterdir()})
    storage.commit(STEP, files=files)
    return weights


@pytest.mark.parametrize("name", ["", "/step-00000003", "/step-00000003.0a.1"])
def test_a_checkpoint_is_known_by_its_run_its_step_and_its_place(
    url: str, weights: dict[str, torch.Tensor], name: str
) -> None:
    assert weights
    assert named_checkpoint(f"{url}{name}").place == "step-00000003.0a.1"
    with pytest.raises(CorruptCheckpointError, match="does not name step 4"):
        named_checkpoint(f"{url}/step-00000004")


def test_a_checkpoint_becomes_a_model_beside_it(
    url: str, weights: dict[str, torch.Tensor], proxy: Proxy
) -> None:
    proxy.seen.clear()
    assert main(["export", url, f"{url}/model", "--dtype", "bfloat16"]) == ExitCode.OK
    changes = [request for request in proxy.seen if request.writes]
    assert [each.key.rpartition("/")[2] for each in changes if each.method == "PUT"][-1:] == [
        "config.json"
    ]
    described, read = import_hugging_face(any_path(f"{url}/model"))
    assert described.layers == CONFIG.model.layers
    result = dict(read)
    assert result.keys() == weights.keys()
    assert all(torch.equal(result[key], weights[key].bfloat16()) for key in weights)


def test_what_is_written_to_a_bucket_is_what_is_written_to_a_folder(
    url: str, prefix: str, store: ObjectStore, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Which transformers reads."""
    assert weights
    for target in (f"{url}/model", str(tmp_path / "model")):
        assert main(["export", url, target]) == ExitCode.OK
    there = {name.partition("/")[2]: file for name, file in store.objects(prefix).items()}
    for here in (tmp_path / "model").iterdir():
        if here.suffix == ".json":
            assert there[here.name].read_bytes() == here.read_bytes()
    files = (there["model.safetensors"], tmp_path / "model" / "model.safetensors")
    ours, theirs = (load_file(file) for file in files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert read_header(files[0]).keys() == read_header(files[1]).keys()
    assert b'{"__metadata__":{"format":"pt"}' in files[0].read_bytes()[:64]
    assert "export-begun.json" not in there


def test_an_export_that_was_killed_goes_on_after_the_files_that_are_whole(
    url: str, weights: dict[str, torch.Tensor], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert weights
    monkeypatch.setitem(ObjectBucket.__init__.__kwdefaults__, "retries", 0)
    lost: list[Request] = []

    def lose_the_end(request: Request) -> Fate:
        if request.writes and request.key.endswith("config.json") and request.method == "PUT":
            lost.append(request)
            return Fate.LOST
        return Fate.DONE

    proxy.fate = lose_the_end
    export = ["export", url, f"{url}/model"]
    assert main(export) == ExitCode.STORAGE
    assert lost
    proxy.fate = lambda _: Fate.DONE
    proxy.seen.clear()
    assert main(export) == ExitCode.OK
    assert not [each for each in proxy.seen if each.writes and "model.safetensors" in each.key]
    assert import_hugging_face(any_path(f"{url}/model"))[0].layers == CONFIG.model.layers


def test_it_generates_what_it_generates_from_a_folder(
    url: str,
    weights: dict[str, torch.Tensor],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert weights
    said: list[str] = []
    for place in (str(tmp_path / "step-3"), url):
        assert main(["generate", place, "def ", "--tokens", "8"]) == ExitCode.OK
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != "\n"


def test_checkpoints_are_listed_and_damage_is_said(
    url: str,
    prefix: str,
    store: ObjectStore,
    weights: dict[str, torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert weights
    assert main(["checkpoints", url, "--verify"]) == ExitCode.OK
    assert not missing(capsys.readouterr().out, "2 ranks", "step-00000003.0a.1")
    assert main(["checkpoints", f"{url}/none"]) == ExitCode.APPLICATION
    assert f"{url}/none: no checkpoint lies there" in capsys.readouterr().err
    file = store.objects(prefix)["step-00000003.0a.1/rank-1.safetensors"]
    body = bytearray(file.read_bytes())
    body[-3] ^= 1
    file.write_bytes(body)
    assert main(["checkpoints", url, "--verify"]) == ExitCode.CORRUPT_CHECKPOINT
    assert not missing(capsys.readouterr().out, "step 3", "rank-1.safetensors")
    assert main(["export", url, f"{url}/model"]) == ExitCode.CORRUPT_CHECKPOINT
    assert "rank-1.safetensors: digest differs" in capsys.readouterr().err
    assert not [name for name in store.objects(prefix) if name.startswith("model/")]


def test_a_folder_of_checkpoints_is_listed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    weights = stored(tmp_path / "run" / "step-00000003")
    assert main(["checkpoints", str(tmp_path / "run")]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("step 3  ")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == ExitCode.OK
    assert dict(import_hugging_face(tmp_path / "out")[1]).keys() == weights.keys()


def test_adapters_travel_by_a_bucket_and_are_those_of_a_folder(
    url: str, prefix: str, store: ObjectStore, base: Path
) -> None:
    target = any_path(f"{url}/adapter")
    write_peft(adapters(), target, lora=LORA, model=MODEL, base=base, dtype=torch.float32)
    read = read_peft(target, model=MODEL, base=base)
    assert (read.config.rank, read.config.projections) == (LORA.rank, LORA.projections)
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in adapters().items())
    files = store.objects(prefix)
    assert len(load_file(files["adapter/adapter_model.safetensors"])) == len(adapters())
    assert json.loads(files["adapter/adapter_config.json"].read_bytes())["r"] == LORA.rank
    assert "adapter/tokenizer.json" in files


def test_a_model_in_a_bucket_becomes_a_configuration(
    url: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert weights
    assert main(["export", url, f"{url}/model"]) == ExitCode.OK
    target = tmp_path / "run.json"
    assert main(["import", f"{url}/model", str(target)]) == ExitCode.OK
    written = json.loads(target.read_text())
    assert written["model_from"] == f"{url}/model"
    assert written["model"]["layers"] == CONFIG.model.layers


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("s3://no-such-bucket/run", ExitCode.APPLICATION, "NoSuchBucket (404): make the bucket"),
        ("s3://UPPER/run", ExitCode.APPLICATION, "write a folder, s3://BUCKET/PREFIX"),
        ("/absent", ExitCode.APPLICATION, "/absent: "),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(
    store: ObjectStore,
    capsys: pytest.CaptureFixture[str],
    place: str,
    code: ExitCode,
    words: str,
) -> None:
    assert store
    assert main(["checkpoints", place]) == code
    assert words in capsys.readouterr().err


def test_a_refused_key_is_a_line_without_it(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    for command in (["export", url, f"{url}/out"], ["--set", f"model_from={url}"]):
        assert main(command) == ExitCode.APPLICATION
        said = capsys.readouterr().err
        assert "cannot read s3://" in said
        assert not missing(said, "403", "AWS_SECRET_ACCESS_KEY")
        assert "not-the-secret" not in said
        assert "Traceback" not in said
