"""An export replaces an earlier one in its folder, and never the folder that the run began from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_contract import ExitCode
from drumline_contract.buckets.hub import HubPlace
from drumline_contract.config import TrainerConfig
from drumline_trainer.__main__ import main
from drumline_trainer.adapters.base import base_description
from drumline_trainer.adapters.peft import write_peft
from drumline_trainer.models.hugging_face import export_hugging_face
from tests.texts import missing
from tests.unit.trainer.adapters.test_peft import LORA as LORA_OF_TWO
from tests.unit.trainer.adapters.test_peft import MODEL, adapters
from tests.unit.trainer.test_export import LORA, adapter_shapes, begun
from tests.unit.trainer.test_main_export import CONFIG, stored


@pytest.fixture
def base(tmp_path: Path) -> Path:
    export_hugging_face(begun(CONFIG), CONFIG.model, tmp_path / "base")
    (tmp_path / "base" / "additional_chat_templates").mkdir()
    (tmp_path / "base" / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    return tmp_path / "base"


@pytest.fixture
def step(base: Path, tmp_path: Path) -> Path:
    config = replace(CONFIG, lora=LORA, model_from=str(base))
    return saved(config, tmp_path / "step-3")


def saved(config: TrainerConfig, step: Path) -> Path:
    stored(step, config=config, shapes=adapter_shapes(config), base=base_description(config))
    return step


def test_a_model_replaces_the_adapters_of_an_earlier_export(step: Path, tmp_path: Path) -> None:
    """transformers would load adapters that it finds in the folder, on their base."""
    target = tmp_path / "out"
    assert main(["export", str(step), str(target), "--adapter"]) == ExitCode.OK
    assert (target / "adapter_config.json").exists()
    assert main(["export", str(step), str(target)]) == ExitCode.OK
    assert not [*target.glob("adapter*")]


def test_adapters_have_the_template_of_the_run_s_own_file(base: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    data = replace(CONFIG.data, chat_template=str(template))
    step = saved(replace(CONFIG, lora=LORA, model_from=str(base), data=data), tmp_path / "step-3")
    for target, more in ((tmp_path / "adapter", ["--adapter"]), (tmp_path / "whole", [])):
        assert main(["export", str(step), str(target), *more]) == ExitCode.OK
        assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
        # The run has read the one file for all records, those with tools too.
        assert not [*target.glob("additional_chat_templates/*")]


@pytest.mark.parametrize("options", [[], ["--adapter"]], ids=["whole", "adapter"])
def test_the_folder_that_the_run_began_from_is_not_overwritten(
    step: Path, base: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    target = str(base.parent / "." / "base" / ".." / "base")
    assert main(["export", str(step), target, *options]) == ExitCode.CONFIG
    assert not missing(capsys.readouterr().err, "is model_from of the run", "another folder")
    assert before == {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://org/name@v2", ("org/name", "v2")),
        ("hf://org/name", ("org/name", None)),
        ("hf://org/name/part", ("{base}", None)),
    ],
)
def test_a_base_of_the_hub_is_named_by_its_repository(
    tmp_path: Path, url: str, expected: tuple[str, str | None]
) -> None:
    """A path into the cache of the pod that exports means nothing elsewhere."""
    folder = tmp_path / "snapshots"
    weights = begun(replace(CONFIG, model=MODEL))
    export_hugging_face(weights, MODEL, folder)
    write_peft(
        adapters(),
        tmp_path / "out",
        lora=LORA_OF_TWO,
        model=MODEL,
        base=folder,
        dtype=next(iter(weights.values())).dtype,
        hub_base=HubPlace.parse(url),
    )
    described = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    name, revision = expected
    assert described["base_model_name_or_path"] == name.format(base=folder)
    assert described.get("revision") == revision
