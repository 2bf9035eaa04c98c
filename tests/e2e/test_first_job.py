"""The first job of docs/laptop.md: its commands as they stand there, and what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.e2e.site import Site
from tests.kube import Json
from tools.cluster import kubectl

ROOT = Path(__file__).parents[2]
LOGGED_STEP = 40
"""The last step in the excerpt of the log."""


def session() -> list[tuple[str, list[str]]]:
    """Each command of the section, and the lines that it prints."""
    section = (ROOT / "docs/laptop.md").read_text().split("\n## A job of your own\n")[1]
    (block,) = re.findall(r"```console\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    commands = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, printed) for command, *printed in commands]


def test_the_commands_of_the_first_job_print_what_the_page_shows(site: Site) -> None:
    def run(command: str) -> list[str]:
        program, *arguments = shlex.split(command.partition(" | ")[0])
        assert program == "kubectl"
        mine = [site.namespace if word == "demo" else word for word in arguments]
        return kubectl(site.cluster, *mine).splitlines()

    (apply, applied), (get, table), (logs, lines) = session()
    assert run(apply) == applied
    site.wait("first-job", lambda job: step(job) >= LOGGED_STEP)
    header, row, *_ = run(get)
    assert header.split() == table[0].split()
    assert row.split()[:2] == table[1].split()[:2]
    written = "\n".join(run(logs))
    for line in lines:
        shape = re.sub(r"[\d.]+(e-?\d+)?", "[0-9.e-]+", re.escape(line).replace(r"\.", "."))
        assert re.search(shape, written), f"no line like {line!r} in:\n{written}"


def step(job: Json | None) -> int:
    """The step that its status shows."""
    return int((job or {}).get("status", {}).get("step") or 0)
