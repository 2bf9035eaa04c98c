"""`drumline data show` in the trainer's own process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_cli.arguments import parser
from drumline_cli.commands import run
from drumline_cli.errors import BadInput
from tests.unit.trainer.data.records.conversations import (
    conversation,
    write_chat_model,
    write_lines,
)


def shown(source: Path, model: Path, *more: str) -> str:
    words = ["data", "show", str(source), "--model", str(model), *more]
    return run(parser("drumline").parse_args(words), os.environ).text


def test_the_trainers_text_is_printed(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model")
    source = write_lines(tmp_path / "data" / "a.jsonl", [conversation(n) for n in range(4)])
    text = shown(source.parent, model, "--pattern", "*.jsonl", "--sequence-length", "8")
    assert text.startswith("4 documents, ")
    assert "4 documents are longer than 8 tokens" in text
    assert "[[" in text


def test_data_that_a_run_refuses_is_bad_input(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model", template=None)
    source = write_lines(tmp_path / "a.jsonl", [conversation(0)])
    with pytest.raises(BadInput, match=r"^data\.chat_template: .* has no chat template"):
        shown(source, model)
