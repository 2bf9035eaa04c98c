"""Log lines, as a process of its own writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import logging, sys
from drumline.telemetry import logs

logs.configure(level=sys.argv[1], log_format=sys.argv[2])
log = logs.get("drumline.room")
log.debug("too_quiet")
log.info("gang_placed", job="team/llama", nodes=4)
logging.getLogger("foreign.library").warning("took %d s", 3)
logging.getLogger("kopf.activities").info("narration")
try:
    raise ValueError("boom")
except ValueError:
    log.exception("reconcile_crashed")
"""


HOSTILE = """
import logging, sys
from drumline.telemetry import logs

logs.configure(level=sys.argv[1], log_format=sys.argv[2])
text = "a\\x1b[2Jb\\nz"
logging.getLogger("foreign.library").warning(text)
try:
    raise ValueError(text)
except ValueError:
    logs.get("drumline.room").exception("reconcile_crashed", job=text)
"""


def lines(*, level: str = "info", log_format: str = "json", script: str = SCRIPT) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, level, log_format],
        env={"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def entries(*, level: str = "info") -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(level=level)]


def test_each_event_is_a_json_line_with_its_fields() -> None:
    placed, foreign, crashed = entries()
    time = placed.pop("time")
    assert time.endswith("Z")
    assert placed == {
        "event": "gang_placed",
        "job": "team/llama",
        "nodes": 4,
        "level": "info",
        "logger": "drumline.room",
    }
    assert (foreign["event"], foreign["level"]) == ("took 3 s", "warning")
    assert foreign["logger"] == "foreign.library"
    assert "ValueError: boom" in crashed["exception"]


def test_the_level_holds_and_kopf_s_narration_is_left_out() -> None:
    assert entries(level="debug")[0]["event"] == "too_quiet"
    assert [entry["event"] for entry in entries(level="error")] == ["reconcile_crashed"]
    assert "narration" not in {entry["event"] for entry in entries(level="debug")}


def test_a_person_s_format_is_readable() -> None:
    first = lines(log_format="console")[0]
    assert "gang_placed" in first
    assert "job=team/llama" in first
    assert not first.startswith("{")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_foreign_text_steers_no_terminal_and_starts_no_line(log_format: str) -> None:
    shown = lines(log_format=log_format, script=HOSTILE)
    assert all(line.isprintable() for line in shown)
    assert sum("a" in line and "b" in line and "z" in line for line in shown) >= 2
