"""What docs/training.md says is so: its examples, its refusals, and the figures it computes."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.autograd.graph import saved_tensors_hooks

from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJob, TrainingJobSpec
from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    FolderConfig,
    Schedule,
    TrainerConfig,
)
from drumline_contract.layout_validation import ViolationReason, validated_layout
from drumline_trainer.__main__ import configured
from drumline_trainer.models.build import build_on_meta
from tests.unit.trainer.parallelism.pipeline_parallel.schedule_orders import (
    BACKWARD,
    FORWARD,
    Replay,
    layout_of,
    pipeline_order,
)
from tools.generate.trainer_reference import REFUSED, refused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text()
RANKS = 8
PAIRS = re.findall(
    r"^\| TrainingJob \| `(.+)` \|\n\| command line \| `(.+)` \|$", PAGE, re.MULTILINE
)
COMMANDS = re.findall(r"^\$ (.* -m drumline_trainer .*)$", PAGE, re.MULTILINE)
QUOTED = re.findall(r"`([a-z_0-9.]+: [^`]+)`", PAGE)
MANIFESTS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def of_command(words: str, *, preset: str | None = None) -> TrainerConfig:
    """The configuration that these options give."""
    matches = dict(re.findall(r"--(preset|ranks|nproc-per-node) (\S+)", words))
    settings = re.findall(r"--set (\S+)", words)
    known = {"--set", "--preset", "--ranks", "--nproc-per-node", "--checkpoint-folder"}
    assert {word for word in shlex.split(words) if word.startswith("--")} <= known
    return configured(None, preset=matches.get("preset", preset), settings=settings)


def of_trainer(fragment: str) -> TrainerConfig:
    """The configuration of a job of one node with this `trainer`; a folder's model is tiny."""
    raw: dict[str, Any] = yaml.safe_load(fragment)
    spec = {"queue": "research", "nodes": 1, "gpusPerNode": RANKS, **raw}
    parsed = parse(TrainingJobSpec, spec)
    given = parsed.model_dump(by_alias=True, exclude_unset=True)
    assert given["trainer"] == raw["trainer"]  # no field was ignored
    config = trainer_config(parsed)
    return config.with_model(MODEL_PRESETS["tiny"]) if isinstance(config, FolderConfig) else config


def facts(sentence: str) -> list[str]:
    """Return the settings and figures of a sentence; its other words may differ."""
    return re.findall(r"^[a-z_0-9.]+(?=:)|[a-z0-9]+(?:[._][a-z0-9_]+)+|\d+", sentence)


def test_there_is_something_to_check() -> None:
    techniques = PAGE.count("\n| command line |")
    assert len(PAIRS) == techniques >= 9
    assert len(COMMANDS) >= 3
    assert len(MANIFESTS) >= 1


@pytest.mark.parametrize(("fragment", "options"), PAIRS, ids=[options for _, options in PAIRS])
def test_job_and_command_line_ask_for_the_same(fragment: str, options: str) -> None:
    config = of_command(options, preset="tiny")
    assert of_trainer(fragment) == config
    validated_layout(config, world_size=RANKS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_legal(command: str) -> None:
    counted = re.search(r"--(?:ranks|nproc-per-node) (\d+)", command)
    assert counted is not None
    validated_layout(of_command(command), world_size=int(counted[1]))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_manifest_is_a_job_that_starts(manifest: str) -> None:
    job = parse(TrainingJob, yaml.safe_load(manifest))
    trainer_config(job.spec)


def test_the_three_axes_are_the_example_that_is_named() -> None:
    assert (ROOT / "examples" / "three-dimensional.yaml").read_text() in MANIFESTS


@pytest.mark.parametrize(
    "raw",
    [
        {"fp8": True},
        {"fp8": True, "precision": "bf16", "lora": {}},
        {"lora": {"base_bits": 8}},
    ],
)
def test_what_no_number_of_ranks_helps_is_refused_with_these_figures(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainerConfig.from_dict(raw)
    assert facts(str(refused.value)) in [facts(quoted) for quoted in QUOTED]


def test_every_reason_to_refuse_is_shown() -> None:
    shown = {objection.reason for options in REFUSED for objection in refused(options)}
    assert shown == set(ViolationReason)
    assert all(len(refused(options)) == 1 for options in REFUSED)


def test_every_file_of_a_technique_exists() -> None:
    named = re.findall(r"`((?:[a-z_0-9]+/)?[a-z_0-9]+\.py)`", PAGE)
    trainer = ROOT / "trainer"
    folders = (trainer / "drumline_trainer", trainer / "drumline_contract")
    absent = [
        name
        for name in named
        if not any(
            (folder / part / name).exists()
            for folder in folders
            for part in ("", "parallelism", "optimization")
        )
    ]
    assert named
    assert absent == []


@pytest.mark.parametrize("schedule", Schedule)
def test_bubbles_and_micro_batches_in_flight_are_those_of_torchs_orders(
    schedule: Schedule,
) -> None:
    cells = r".*?\|.*?\|(.*?) %? ?\|(.*?) %? ?\| ([\d.]+)"
    row = re.search(rf"^\| `{schedule}`{cells}", PAGE, re.MULTILINE)
    assert row is not None
    layout = layout_of(schedule, 4)
    orders = {m: pipeline_order(layout, micro_batches=m) for m in (8, 16)}
    bubbles = [Replay(layout=layout, order=order).bubble() for order in orders.values()]
    assert [f"{100 * bubble:.1f}" for bubble in bubbles] == [row[1].strip(), row[2].strip()]
    assert _most_in_flight(orders[16]) / layout.stages_per_rank == float(row[3])


def _most_in_flight(order: dict[int, list[tuple[str, int, int]]]) -> int:
    """Forwards whose whole backward has not come, on the rank that has most."""
    most = 0
    for works in order.values():
        flying = 0
        for what, *_ in works:
            flying += what == FORWARD
            flying -= what in (BACKWARD, "BACKWARD_WEIGHT")
            most = max(most, flying)
    return most


def test_a_layer_keeps_the_bytes_of_the_formula() -> None:
    shape = dataclasses.replace(MODEL_PRESETS["small"], layers=1)
    tokens, hidden, heads = 32, shape.hidden_size, shape.heads
    key_values = shape.kv_heads * shape.features_per_head
    formula = 12 * hidden + 4 * key_values + 8 * shape.ffn_size + 4 * heads
    on_a_cpu = 14 * hidden + 2 * 4  # fp32 copies of the norms' inputs, and their scales
    more = _saved_bytes(dataclasses.replace(shape, layers=2), tokens) - _saved_bytes(shape, tokens)
    assert more == tokens * (formula + on_a_cpu)


def _saved_bytes(shape: Any, tokens: int) -> int:
    """Of the tensors that autograd keeps for one backward pass in bf16, weights left out."""
    model = build_on_meta(shape).to(torch.bfloat16).to_empty(device="cpu")
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, tokens, dtype=torch.int64))
    return sum(storage.nbytes() for storage in kept.values())


def test_the_worked_example_counts_what_the_model_has() -> None:
    model = build_on_meta(MODEL_PRESETS["llama-8b"])
    count = sum(weight.numel() for weight in model.parameters())
    layer = sum(weight.numel() for weight in model.layers["0"].parameters())
    root = count - 32 * layer
    line = f"N = {count:,}, a layer {layer:,}, the root (embedding, head, norm) {root:,}"
    assert line in PAGE
