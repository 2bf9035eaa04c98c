"""Read `hf://` URLs from a server on loopback with the API of the Hub. The real Hub is not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import torch
from huggingface_hub.utils import (
    filter_repo_objects,
    parse_hf_uri,  # pyright: ignore[reportUnknownVariableType]
)
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Env, ExitCode
from drumline_contract.buckets import hub as hub_module
from drumline_contract.buckets.failures import StoreError
from drumline_contract.buckets.hub import HubPlace, fetched
from drumline_contract.buckets.path import any_path
from drumline_contract.config import ConfigError, DataConfig, TrainerConfig
from drumline_contract.layout import Layout
from drumline_contract.shapes.hugging_face import (
    HuggingFaceError,
    from_hub,
    to_theirs,
    with_model_of_folder,
)
from drumline_trainer.__main__ import main
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face, import_hugging_face
from drumline_trainer.models.initialize import initialize
from drumline_trainer.preflight import environment_facts
from tests.hub_server import Hub, Repository, commit_of
from tests.hub_server import hub as running_hub
from tests.unit.trainer.data.records.conversations import TEMPLATE, conversation, write_chat_model
from tests.unit.trainer.models.test_hugging_face_buckets import MODEL

RANK = """
import os, sys
from drumline_agent.processes import rank_main
from drumline_agent.rank_protocol.placement import Placement

os.environ.update(rank_main._environment(Placement.from_json(sys.argv[1])))
print(rank_main._config().model.layers)
"""
TIED: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
fetches = pytest.mark.extended(keep=5, of="fetches from the Hub")
TOKEN = "hf_of_the_tests"  # noqa: S105 - not a real token


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as server:
        for name, value in (
            ("HF_ENDPOINT", server.endpoint),
            ("HF_HOME", str(tmp_path / "home")),
            ("HF_TOKEN", TOKEN),
        ):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield server


@pytest.fixture
def name() -> str:
    """Return a unique name, because a process fetches each URL only once."""
    return f"org/{uuid4().hex}"


@pytest.fixture
def model(hub: Hub, name: str, tmp_path: Path) -> Repository:
    """Return a model with several weight files, and files that must not be fetched."""
    folder = write_chat_model(tmp_path / "model")
    module = build_on_meta(MODEL).to_empty(device="cpu")
    initialize(module, seed=3)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    export_hugging_face(weights, MODEL, folder, max_file_bytes=20_000)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    beside_it = {
        "pytorch_model.bin": b"\x80\x04pickle",
        "modeling.py": b"raise SystemExit",
        "consolidated.safetensors": b"twice",
        "original/params.json": b"{}",
        "additional_chat_templates/default.jinja": TEMPLATE.encode(),
    }
    hub.models[name] = Repository(files={**files, **beside_it}, token=TOKEN)
    return hub.models[name]


def stored(place: Path) -> dict[str, bytes]:
    return {
        file.relative_to(place).as_posix(): file.read_bytes()
        for file in place.rglob("*")
        if file.is_file()
    }


@fetches
def test_a_model_is_its_configuration_its_tokenizer_and_the_weights_of_its_index(
    hub: Hub, model: Repository, name: str, tmp_path: Path
) -> None:
    place = any_path(f"hf://{name}")
    assert isinstance(place, Path)
    wanted = {path for path in model.files if not path.startswith(("original/", "consolidated"))}
    assert stored(place).keys() == wanted - {"pytorch_model.bin", "modeling.py"}
    assert all(body == model.files[path] for path, body in stored(place).items())
    described, read = import_hugging_face(place)
    tensors = dict(read)
    for key, tensor in import_hugging_face(tmp_path / "model")[1]:
        assert torch.equal(tensors[key], tensor)
    assert described.layers == MODEL.layers
    asked = [each for each in hub.seen if each.host == "cdn"]
    assert asked
    assert {each.token for each in asked} == {None}
    assert {each.token for each in hub.seen if each.host == "hub"} == {TOKEN}


@fetches
def test_a_pinned_commit_that_is_here_needs_no_hub(
    hub: Hub, model: Repository, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"hf://{name}@{model.commit}"
    place = fetched(url).place
    hub_module._asked.cache_clear()  # pyright: ignore[reportPrivateUsage]
    hub.seen.clear()
    hub.status = 500
    assert fetched(url).place == place
    assert not hub.seen
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched(f"hf://{name}@{model.commit}").place == place


@fetches
def test_a_branch_that_moves_does_not_change_a_process(
    hub: Hub, model: Repository, name: str
) -> None:
    url = f"hf://{name}"
    config = with_model_of_folder({"model_from": url})
    model.commit = commit_of(2)
    assert fetched(url).commit == commit_of(1)
    assert commit_of(1) in str(fetched(url).place)
    facts = environment_facts(config, Layout(), backend="gloo")
    assert facts[f"commit of {url}"] == commit_of(1)
    assert hub.models[name].commit == commit_of(2)


@fetches
def test_ranks_that_start_together_read_one_commit_of_a_branch_that_moves(
    hub: Hub, name: str
) -> None:
    """The second rank begins after the branch has moved, and asks the Hub for nothing."""
    hub.models[name] = Repository(files={"config.json": _layers(2)})

    def rank(number: int, *, attempt: int) -> int:
        placement = Placement(
            rank=number,
            world_size=2,
            local_rank=number,
            local_world_size=2,
            owner="a",
            attempt=attempt,
        )
        environment = {**os.environ, Env.CONFIG: json.dumps({"model_from": f"hf://{name}"})}
        done = subprocess.run(
            [sys.executable, "-c", RANK, placement.to_json()],
            env=environment,
            capture_output=True,
            check=True,
        )
        return int(done.stdout)

    assert rank(0, attempt=0) == 2
    hub.models[name] = Repository(files={"config.json": _layers(4)}, commit=commit_of(2))
    hub.seen.clear()
    assert rank(1, attempt=0) == 2
    assert not hub.seen
    # The next start of the job reads the branch again.
    assert [rank(number, attempt=1) for number in range(2)] == [4, 4]
    named = f"/api/models/{name}"
    assert [each.path for each in hub.seen].count(named) == 1


def _layers(count: int) -> bytes:
    return json.dumps(to_theirs(replace(MODEL, layers=count), dtype="float32")).encode()


@fetches
def test_the_configuration_is_read_without_the_weights(
    hub: Hub, model: Repository, name: str
) -> None:
    place = fetched(f"hf://{name}", "config").place
    assert (place / "config.json").read_bytes() == model.files["config.json"]
    assert not [each for each in hub.seen if each.host == "cdn"]


@fetches
@pytest.mark.parametrize(
    ("head", "shards"), [(None, 1), (None, 2), ("tied", 1), ("apart", 1), ("apart", 2)]
)
def test_a_tied_model_is_downloaded_only_to_compare_a_head_that_it_stores(
    hub: Hub, name: str, tmp_path: Path, head: str | None, shards: int
) -> None:
    """A head that is equal to the embedding stays tied, as in a folder of this machine."""
    folder = tmp_path / "tied"
    config = LlamaConfig(**TIED, tie_word_embeddings=head != "apart")
    module = cast("Any", LlamaForCausalLM)(config)
    module.save_pretrained(folder, max_shard_size="30KB" if shards > 1 else "5GB")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "tie_word_embeddings": True}))
    if head == "tied":
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        save_file(tensors, folder / "model.safetensors")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.models[name] = Repository(files=files)
    raw = with_model_of_folder({"model_from": f"hf://{name}"})
    assert raw["model"]["tied_embeddings"] is (head != "apart")
    ranges = [each.range for each in hub.seen if each.host == "cdn"]
    assert (None in ranges) is (head is not None)
    assert (len(files) > 3) is (shards > 1)
    # A second process reads what the first one found, without the Hub.
    hub.models[name].commit = ""
    hub_module._asked.cache_clear()  # pyright: ignore[reportPrivateUsage]
    hub.seen.clear()
    pinned = f"hf://{name}@{commit_of(1)}"
    assert with_model_of_folder({"model_from": pinned})["model"] == raw["model"]
    assert not hub.seen


@fetches
def test_a_transfer_that_breaks_continues_where_it_was(hub: Hub, name: str) -> None:
    files = {"config.json": b"{}", "model.safetensors": bytes(24 << 20)}
    hub.models[name] = Repository(files=files)
    hub.cuts = 1
    assert stored(fetched(f"hf://{name}").place) == files
    # the library writes pieces of 10 MiB, and received half of the file
    assert [each.range for each in hub.seen if each.host == "cdn"] == [None, f"bytes={10 << 20}-"]


@fetches
@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_a_file_with_another_digest_is_removed_and_fetched_again(
    hub: Hub, name: str, path: str
) -> None:
    files = {"config.json": b'{"a": 1}', "model.safetensors": b"weights of a model"}
    repository = Repository(files=files, sent={path: files[path].swapcase()})
    hub.models[name] = repository
    with pytest.raises(StoreError, match="removed") as caught:
        fetched(f"hf://{name}")
    assert caught.value.may_come_back
    assert path in str(caught.value)
    repository.sent.clear()
    assert stored(fetched(f"hf://{name}").place) == files


@fetches
def test_records_of_a_data_set(
    hub: Hub, model: Repository, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model
    lines = "".join(json.dumps(conversation(number)) + "\n" for number in range(12))
    hub.datasets[name] = Repository(
        files={
            "README.md": b"# data",
            "load.py": b"raise SystemExit",
            "chats/a [1].jsonl": lines.encode(),
            "chats/b.txt": b"text",
            "other/c.jsonl": b"{}",
        }
    )
    place = fetched(f"hf://datasets/{name}@main/chats").place
    assert stored(place).keys() == {"a [1].jsonl", "b.txt"}
    folder = any_path(f"hf://{name}")
    config = DataConfig(source=f"hf://datasets/{name}/chats", pattern="*.jsonl", sequence_length=64)
    data = open_dataset(config, seed=0, model_folder=folder)
    assert data.windows
    data.close()
    words = ["data", "show", f"hf://datasets/{name}/chats/a [1].jsonl", "--model", f"hf://{name}"]
    assert main(words) == ExitCode.OK
    assert capsys.readouterr().out.startswith("12 documents, ")


@pytest.mark.parametrize("path", ["", "chats", "chats/a [1]", "chats/a [1]/7.JSONL"])
def test_a_large_data_set_is_chosen_by_a_few_patterns(path: str) -> None:
    """The library compares each pattern with each file: of 10^5 files, 10^10 names are too many."""
    folders = ("chats", "chats/a [1]", "chats/a 1", "other")
    names = [
        f"{folder}/{number}.{suffix}"
        for folder in folders
        for number in range(200)
        for suffix in ("JSONL", "jsonl", "jpg", "py")
    ]
    chosen = hub_module._data_files(path, names)  # pyright: ignore[reportPrivateUsage]
    patterns = hub_module._data_patterns(path, chosen)  # pyright: ignore[reportPrivateUsage]
    assert len(patterns) <= 3
    assert list(filter_repo_objects(names, allow_patterns=patterns)) == chosen


@fetches
def test_import_keeps_the_url(model: Repository, name: str, tmp_path: Path) -> None:
    assert model
    assert main(["import", f"hf://{name}", str(tmp_path / "run.json")]) == ExitCode.OK
    assert json.loads((tmp_path / "run.json").read_text())["model_from"] == f"hf://{name}"
    assert main(["export", str(tmp_path), f"hf://{name}"]) == ExitCode.CONFIG


@fetches
@pytest.mark.parametrize(
    ("url", "message", "comes_back"),
    [
        ("hf://org/absent", "no such repository, or HF_TOKEN", False),
        ("hf://org/gated", "gated: accept its terms", False),
        ("hf://org/open@v2", "no such revision", False),
        ("hf://org/open/below", "no model in below", False),
        ("hf://org/full", "HF_HOME", False),
        ("hf://org/large", "config.json is larger than", False),
        ("hf://org/index", "has no weight_map", False),
        ("hf://datasets/org/code", "no file of a type", False),
        ("hf://datasets/org/code/x.jsonl", "no x.jsonl", False),
        ("hf://org/busy", "the Hub answers 503", True),
    ],
)
def test_refusals_are_one_line_without_the_token(
    hub: Hub, url: str, message: str, comes_back: bool
) -> None:
    config = b"{}"
    hub.models |= {
        "org/gated": Repository(files={}, gated=True),
        "org/open": Repository(files={"config.json": config}),
        "org/full": Repository(
            files={"config.json": config, "model.safetensors": b""},
            sizes={"model.safetensors": 1 << 60},
        ),
        "org/large": Repository(files={"config.json": config}, sizes={"config.json": 1 << 40}),
        "org/index": Repository(files={"model.safetensors.index.json": config}),
    }
    hub.datasets["org/code"] = Repository(files={"load.py": b""})
    hub.status = 503 if url.endswith("busy") else 200
    with pytest.raises((HuggingFaceError, StoreError), match=message) as caught:
        from_hub(url, field="model_from")
    assert isinstance(caught.value, StoreError) is comes_back
    assert TOKEN not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@fetches
def test_a_lost_hub_may_come_back(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="does not answer") as caught:
        fetched("hf://org/lost")
    assert caught.value.may_come_back


@fetches
def test_a_folder_that_cannot_be_written_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models["org/unwritable"] = Repository(files={"config.json": b"{}"})
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="HF_HOME") as caught:
        fetched("hf://org/unwritable")
    assert not caught.value.may_come_back


@pytest.mark.parametrize(
    "url",
    [
        "hf://org/name",
        "hf://datasets/org/name",
        "hf://org/name@v1.0",
        "hf://org/name@refs/pr/3",
        "hf://datasets/org/name@refs/convert/parquet/default/train/0000.parquet",
        "hf://org/na.me-x@feature%2Fx/a/b c.json",
    ],
)
def test_urls_mean_what_the_library_reads_in_them(url: str) -> None:
    ours, theirs = HubPlace.parse(url), parse_hf_uri(url)
    assert (ours.kind, ours.repository, ours.revision, ours.path) == (
        theirs.type,
        theirs.id,
        theirs.revision,
        theirs.path_in_repo,
    )


@pytest.mark.parametrize(
    "url",
    [
        "hf://name",
        "hf://org/name@",
        "hf://org/name/../other",
        "hf://org/name/a//b",
        "hf://org/name/",
        "hf://user:password@org/name",
        "hf://org/name/a\nb",
    ],
)
def test_other_urls_are_refused_unread(url: str) -> None:
    with pytest.raises(ConfigError, match="model_from: must be a folder"):
        TrainerConfig.from_dict({"model_from": url})
    with pytest.raises(ConfigError, match=r"data\.source: must"):
        DataConfig(source=url)
    with pytest.raises(ValueError, match="hf://ORG/NAME"):
        HubPlace.parse(url)


def test_models_and_data_sets_are_not_mistaken() -> None:
    with pytest.raises(ConfigError, match="model_from: must be a folder"):
        TrainerConfig.from_dict({"model_from": "hf://datasets/org/name"})
    with pytest.raises(ConfigError, match="hf://datasets/ORG/NAME"):
        DataConfig(source="hf://org/name")
