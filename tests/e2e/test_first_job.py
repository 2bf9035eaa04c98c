"""Run the commands of the first job in docs/laptop.md and check their output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.site import Site, assert_restricted
from tests.kube import Json
from tools.cluster import kubectl

ROOT = Path(__file__).parents[2]
LOGGED_STEP = 40
"""The log must contain the line of this step."""
COLUMNS = {"NAME", "PHASE", "REASON", "READY", "STEP", "LOSS"}
LOG_LINE = re.compile(
    rf"step {LOGGED_STEP}/100 +loss [0-9.]+ +grad [0-9.e-]+ +[0-9.k]+ tok/s +eta [0-9:]+"
)


def commands() -> list[list[str]]:
    """Return the words of each command of the section."""
    section = (ROOT / "docs/laptop.md").read_text().split("\n## A job of your own\n")[1]
    (block,) = re.findall(r"```sh\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    return [shlex.split(line) for line in block.splitlines()]


@pytest.mark.extended(keep=1, of="first training")
def test_the_commands_of_the_first_job_print_what_the_page_says(site: Site) -> None:
    def run(command: list[str]) -> list[str]:
        program, *arguments = command
        assert program == "kubectl"
        mine = [site.namespace if word == "demo" else word for word in arguments]
        return kubectl(site.cluster, *(word for word in mine if word != "--follow")).splitlines()

    apply, get, logs = commands()
    assert run(apply) == ["trainingjob.drumline.dev/first-job created"]
    site.wait("first-job", lambda job: step(job) >= LOGGED_STEP)
    header, row, *_ = run(get)
    assert set(header.split()) >= COLUMNS
    assert row.split()[:3] == ["first-job", "research", "Running"]
    written = "\n".join(run(logs))
    assert LOG_LINE.search(written), written
    assert_restricted(site, "first-job")


def step(job: Json | None) -> int:
    """Return the step in the status of the job. 0: no step yet."""
    return int((job or {}).get("status", {}).get("step") or 0)
