"""Commands of user pages are parsed, and their outputs are those of golden files.

A block of the language `console` has commands after a prompt, and their output. `...` stands for
lines, or for the end of a line, that the page leaves out. Other blocks show no output: `sh` has
commands alone, `text` has layouts of folders and formulas.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline_api.crds import DEFINITIONS
from drumline_cli.arguments import parser
from drumline_cli.command_line import parse
from drumline_cli.run_arguments import split_command
from drumline_trainer.__main__ import configured

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCK = re.compile(r"^ *```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(\w+-[\d.]+)?\$ ")
TEXTS = {
    "architecture.md": 1,  # the layers
    "archive.md": 1,  # objects of the archive
    "checkpoints.md": 2,  # folder and bucket
    "data.md": 1,  # folder of shards
    "monitoring.md": 1,  # PromQL
    "observing.md": 1,  # formula of MFU
    "pools.md": 1,  # a manifest of OpenShift
    "simulation.md": 1,  # compared in tests/unit/simulator/test_page.py
    "training.md": 1,  # a diagram
}
"""Blocks that are neither commands nor a language, by page. A new one must not show an output."""


def words(line: str) -> str:
    return " ".join(line.split())


GOLDEN = {
    words(line)
    for file in (ROOT / "tests").rglob("golden/*.txt")
    for line in file.read_text().splitlines()
}


def outputs(page: str) -> Iterator[str]:
    """The lines of output of a page's `console` blocks."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        continues = False
        for line in body.splitlines() if language == "console" else ():
            if continues or PROMPT.match(line.strip()):
                continues = line.endswith("\\")
            elif words(line) not in {"", "..."}:
                yield words(line)


def commands(page: str) -> Iterator[list[str]]:
    """The words of each `drumline` command in a page's blocks, without the program's name."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        if language not in {"sh", "bash", "console"}:
            continue
        for line in body.replace("\\\n", " ").splitlines():
            command = PROMPT.sub("", line.strip())
            if command.startswith("drumline "):
                shell = shlex.shlex(command, posix=True, punctuation_chars="|>&;")
                shell.whitespace_split = True
                words = list(shell)
                ends = [at for at, word in enumerate(words) if word in {"|", ">", "&&", ";"}]
                yield words[1 : min(ends, default=len(words))]


def settings(page: str) -> Iterator[tuple[str | None, list[str]]]:
    """The preset and settings of each run of the trainer that needs no file to be read."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        for line in body.replace("\\\n", " ").splitlines() if language != "text" else ():
            _, module, rest = line.partition(" -m drumline_trainer ")
            words = shlex.split(rest, comments=True) if module else []
            given = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            preset = words[words.index("--preset") + 1] if "--preset" in words else None
            if (given or preset) and not {"...", "--config", "import"} & {*words}:
                yield preset, [each for each in given if not each.startswith("model")]


HELM_SETTING = re.compile(r"--set(?:-string|-json|-file)? '?([\w.]+)")
OUR_KIND = re.compile(r"\b(?:training\w+|gpu-?pools?\w*)(?=[\s,/.]|$)", re.IGNORECASE)
JSONPATH = re.compile(r"(trainingjob|trainingqueue|gpupool)s?[ /]\S+ .*jsonpath=\'?\{\.([\w.]+)\}")


def lines_of(page: str, program: str) -> Iterator[str]:
    """The commands of a program in a page's blocks, each on one line."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        for line in body.replace("\\\n", " ").splitlines() if language != "yaml" else ():
            command = PROMPT.sub("", line.strip()).partition("   # ")[0]
            if command.startswith(f"{program} "):
                yield command


def has_path(schema: dict[str, Any], path: str) -> bool:
    for name in path.split("."):
        fields = schema.get("properties") or {}
        if name not in fields:
            return bool(schema.get("additionalProperties")) or not fields
        schema = fields[name]
    return True


def is_golden(line: str) -> bool:
    if not line.endswith("..."):
        return line in GOLDEN
    return any(known.startswith(line.removesuffix("...").strip()) for known in GOLDEN)


@pytest.mark.parametrize("page", PAGES)
def test_every_output_is_printed_by_a_test(page: str) -> None:
    assert [line for line in outputs(page) if not is_golden(line)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_of_the_program(page: str) -> None:
    for words in commands(page):
        given, _ = split_command(words)
        parse(parser("drumline"), given)


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_a_trainer_command_is_valid(page: str) -> None:
    for preset, given in settings(page):
        configured(None, preset=preset, settings=given)


def test_no_other_block_shows_an_output() -> None:
    texts = {
        name: sum(language in {"", "text"} for language, _ in BLOCK.findall(page.read_text()))
        for name, page in PAGES.items()
    }
    assert {name: count for name, count in texts.items() if count} == TEXTS
    for name, page in PAGES.items():
        for language, body in BLOCK.findall(page.read_text()):
            assert language == "console" or not re.search(r"^\$ ", body, re.MULTILINE), name


@pytest.mark.parametrize("page", PAGES)
def test_every_value_that_helm_sets_is_one_of_the_chart(page: str) -> None:
    schema = json.loads((ROOT / "helm/drumline/values.schema.json").read_text())
    for command in lines_of(page, "helm"):
        unknown = [key for key in HELM_SETTING.findall(command) if not has_path(schema, key)]
        assert not unknown or "drumline" not in command, command


@pytest.mark.parametrize("page", PAGES)
def test_every_kind_and_field_that_kubectl_reads_is_ours(page: str) -> None:
    names = {
        name
        for each in DEFINITIONS
        for names in [each.manifest()["spec"]["names"]]
        for name in (names["plural"], names["singular"], *names.get("shortNames", ()))
    }
    schemas = {
        names["singular"]: each.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in DEFINITIONS
        for names in [each.manifest()["spec"]["names"]]
    }
    for command in lines_of(page, "kubectl"):
        assert {kind.lower() for kind in OUR_KIND.findall(command)} <= names, command
        for kind, path in JSONPATH.findall(command):
            assert path == "metadata.uid" or has_path(schemas[kind], path), command
