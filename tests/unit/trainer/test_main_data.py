"""`data show`: what a run would make of records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drumline_contract import ExitCode
from drumline_trainer.__main__ import main
from tests.unit.trainer.data.records.conversations import write_lines
from tests.unit.trainer.data.records.tokenizers_by_shape import write_tokenizer

USER = {"role": "user", "content": "Two?"}
ANSWER = {"role": "assistant", "content": "four"}
RECORDS: list[dict[str, Any]] = [
    {"messages": [USER, ANSWER]},
    {"messages": [USER]},
    {"messages": [USER, {**ANSWER, "weight": 0}]},
    {"messages": [USER, ANSWER], "text": "The fox"},
    {"messages": [USER, {"role": "assistant", "content": "Two and two are four. " * 60}]},
]


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    write_tokenizer(folder / "model")
    source = write_lines(folder / "records.jsonl", RECORDS)
    words = ["data", "show", str(source), "--model", str(folder / "model"), *more]
    assert main(words) == ExitCode.OK
    return capsys.readouterr().out


def test_counts_and_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(tmp_path, capsys, "--sequence-length", "64").splitlines()
    assert lines[0].startswith("5 documents, ")
    assert "records.jsonl at byte" in lines[1]
    assert lines[2] == "left out: 2 documents: nothing of them is learned"
    assert "1 records have 'text' beside 'messages': 'messages' is learned" in lines[3]
    assert "1 documents are longer than 64 tokens" in lines[4]
    assert "the first 3 documents" in lines[5]


def test_tokens_are_marked_and_a_long_document_is_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = shown(tmp_path, capsys)
    assert "|\\n|[[f|our|<|im_end|>]]|\\n" in plain
    assert plain.count(" tokens ... ") == 1
    assert "\x1b" not in plain
    colored = shown(tmp_path, capsys, "--color")
    assert "\x1b[32mf\x1b[0m\x1b[32mour\x1b[0m\x1b[1;35m<|im_end|>\x1b[0m" in colored


def test_control_characters_of_records_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(tmp_path / "model")
    source = write_lines(tmp_path / "a\x1b.jsonl", [{"text": "The \x1b[2J fox\u202e"}])
    assert main(["data", "show", str(source), "--model", str(tmp_path / "model")]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_what_a_run_refuses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path / "model")
    source = write_lines(tmp_path / "r.jsonl", [{"messages": [{**ANSWER, "mood": "good"}]}])
    words = ["data", "show", str(source), "--model"]
    assert main([*words, str(tmp_path / "model")]) == ExitCode.CONFIG
    assert "r.jsonl at byte 0: message 1: unknown field 'mood'" in capsys.readouterr().err
    assert main([*words, str(tmp_path)]) == ExitCode.CONFIG
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_no_torch_is_imported(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    source = write_lines(tmp_path / "records.jsonl", RECORDS)
    words = ["data", "show", str(source), "--model", str(tmp_path / "model")]
    program = (
        "import sys; sys.modules['torch'] = None; from drumline_trainer.__main__ import main;"
        f" sys.exit(main({words!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
