"""Plain text in files means what kubectl 1.36 sends for it. The table has its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline_cli.program import main
from drumline_cli.yaml_scalars import KubectlLoader

# Written text, and what `kubectl create --dry-run=client -o json` makes of it.
SENT: dict[str, object] = {
    "1e-05": 1e-05,
    "1E5": 100_000,
    "1.5e3": 1500,
    "1.e5": 100_000,
    "-.5": -0.5,
    "2.0": 2,
    "010": 8,
    "08": 8,
    "0o7": 7,
    "-0o7": -7,
    "0X1f": 31,
    "-0b101": -5,
    "0b102": "0b102",
    "1_000": 1000,
    "_1": "_1",
    "._5": "._5",
    "1e": "1e",
    "1e400": "1e400",
    f"0x{'f' * 9000}": f"0x{'f' * 9000}",
    "9" * 25: 1e25,
    "1:30": "1:30",
    "190:20:30.15": "190:20:30.15",
    "2026-11-30": "2026-11-30",
    "2026-11-30T10:00:00Z": "2026-11-30T10:00:00Z",
    "on": True,
    "No": False,
    "tRUE": "tRUE",
    "inf": "inf",
    "~": None,
    "=": "=",
    "1.2.3": "1.2.3",
}


def read_of(text: str) -> Any:
    return yaml.load(text, Loader=KubectlLoader)  # noqa: S506 - a subclass of the safe loader


@pytest.mark.parametrize("written", SENT, ids=lambda written: written[:20])
def test_a_plain_scalar_is_what_kubectl_sends(written: str) -> None:
    read = read_of(f"field: {written}\n")["field"]
    assert (type(read), read) == (type(SENT[written]), SENT[written])


def test_keys_are_text_as_in_json() -> None:
    text = "{1: a, 1.5: b, true: c, d: {2: e}}"
    assert read_of(text) == {
        "1": "a",
        "1.5": "b",
        "true": "c",
        "d": {"2": "e"},
    }


@pytest.mark.parametrize("written", [".nan", "-.inf"])
def test_a_number_that_json_lacks_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"kind: TrainingJob\nspec: {written}\n")
    assert main(["decide", "-f", str(file)]) == 2
    assert f"{file}, line 2: not YAML: JSON has no number {written}" in capsys.readouterr().err


def test_a_restored_job_keeps_the_small_numbers_that_kubectl_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.yaml"
    backup.write_text(
        "apiVersion: drumline.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a, uid: u}\n"
        "spec:\n  queue: q\n  gpusPerNode: 1\n  trainer:\n    overrides:\n      optimizer:\n"
        "        learning_rate: 1e-05\n"
    )
    assert main(["restore", str(backup)]) == 0
    job = read_of(capsys.readouterr().out)
    optimizer = job["spec"]["trainer"]["overrides"]["optimizer"]
    assert json.dumps(optimizer) == '{"learning_rate": 1e-05}'
