"""docs/trainer-reference.md is what the code says, and what it tells to do works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.__main__ import configured
from tools.generate.trainer_reference import (
    EXAMPLE,
    FILE,
    docstrings,
    options_of,
    sections_of,
    text,
)

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / FILE).read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]


def paths(values: dict[str, Any], path: str = "") -> set[str]:
    """Of all values that are no objects."""
    results: set[str] = set()
    for name, value in values.items():
        inner = isinstance(value, dict)
        results |= paths(value, f"{path}{name}.") if inner else {f"{path}{name}"}
    return results


def test_the_page_is_what_the_code_says() -> None:
    assert text() == PAGE, "run `make generate`"


def test_every_option_of_a_whole_configuration_has_a_row() -> None:
    begun = ["lora={}", "evaluation={}", "model.rope_scaling.factor=8"]
    rows = {row[0].strip("| `") for row in ROWS}
    for settings in (begun, ["parallelism.local_sgd={}"]):  # which go together with all else
        whole = configured(None, preset=None, settings=settings).to_dict()
        assert paths(whole) - rows == set()


def test_every_option_has_a_text() -> None:
    silent = [
        f"{path}{option.name}"
        for path, section in sections_of(TrainerConfig)
        for option, said in options_of(section)
        if not said
    ]
    assert silent == []


def test_a_row_tells_type_default_and_the_values_of_an_enum() -> None:
    rows = {row[0].strip("| `"): row[1:] for row in ROWS}
    assert rows["optimizer.beta2"][:2] == ["number", "`0.95`"]
    assert rows["checkpoint.snapshot_every_steps"][:2] == ["integer or `null`", "`null`"]
    assert rows["model.rope_scaling.factor"][1] == "**required**"
    kinds, default, meaning = rows["memory.recompute"]
    assert (kinds, default) == ("`none`, `selective`, `full`, `blocks`", '`"none"`')
    assert "<br>`full`: All but the input of every layer." in meaning


class Colour(StrEnum):
    """Of a test."""

    RED = "red"
    """Like a rose,
    and a fox."""
    BLUE = "blue"
    GREEN = "green"
    """Like grass."""


def test_a_docstring_is_of_the_member_above_it() -> None:
    said = {name: " ".join(words.split()) for name, words in docstrings(Colour).items()}
    assert said == {"RED": "Like a rose, and a fox.", "GREEN": "Like grass."}


def test_the_file_on_the_page_trains_on_two_ranks() -> None:
    config = TrainerConfig.from_dict(json.loads(EXAMPLE))
    assert validated_layout(config, world_size=2).batch_ranks == 2
    assert f"```json\n{EXAMPLE}```" in PAGE


@pytest.mark.parametrize("setting", ["precision=bf16", "model_from=null", "lora.rank=8", "lora={}"])
def test_settings_of_the_page_are_accepted(setting: str) -> None:
    assert f"`{setting}`" in PAGE
    configured(None, preset=None, settings=[setting])


def test_a_job_overrides_as_the_page_says() -> None:
    output = "trainer: {overrides: {optimizer: {beta2: 0.98}}}"
    assert f"`{output}`" in PAGE
    trainer = {"overrides": {"optimizer": {"beta2": 0.98}}}
    spec = parse(TrainingJobSpec, {"queue": "research", "trainer": trainer})
    assert trainer_config(spec).optimizer.beta2 == 0.98


def test_links_within_the_page_have_a_heading() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[`.]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) - anchors == set()


def test_it_is_written_without_torch() -> None:
    script = (
        "import sys, tools.generate.trainer_reference as page; page.text(); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(ROOT / "trainer")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch" not in loaded.stdout.split()
