"""The examples of docs/fine-tuning.md are legal runs, each of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.config.from_folder import FolderConfig
from drumline_contract.layout_validation import validated_layout

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text()


@pytest.mark.parametrize(("name", "prefers"), [("fine-tuning", False), ("preferences", True)])
def test_an_example_is_a_run(name: str, *, prefers: bool) -> None:
    spec = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())["spec"]
    given = trainer_config(parse(TrainingJobSpec, spec))
    assert isinstance(given, FolderConfig)
    config = given.settings
    validated_layout(config, world_size=spec["nodes"] * spec["gpusPerNode"])
    assert config.model_from is not None
    assert config.lora is not None
    assert (config.dpo is not None) is prefers
    assert f"examples/{name}.yaml" in PAGE
