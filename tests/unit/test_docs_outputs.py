"""Parse the commands of user pages, and compare their outputs with golden files.

A `console` block has commands after a prompt, and their output. `...` replaces omitted lines or the
end of a line. Other blocks show no output: `sh` has only commands, and `text` has layouts of
folders and formulas.
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
"""Number of `text` blocks by page. Such a block must not show an output."""


def words(line: str) -> str:
    return " ".join(line.split())


GOLDEN = {
    words(line)
    for file in (ROOT / "tests").rglob("golden/*.txt")
    for line in file.read_text().splitlines()
}


def outputs(page: str) -> Iterator[str]:
    """Yield the lines of output in the `console` blocks of a page."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        continues = False
        for line in body.splitlines() if language == "console" else ():
            if continues or PROMPT.match(line.strip()):
                continues = line.endswith("\\")
            elif words(line) not in {"", "..."}:
                yield words(line)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each `drumline` command in a page, without `drumline`."""
    for command in lines_of(page, "drumline"):
        shell = shlex.shlex(command, posix=True, punctuation_chars="|>&;")
        shell.whitespace_split = True
        words = list(shell)
        ends = [at for at, word in enumerate(words) if word in {"|", ">", "&&", ";"}]
        yield words[1 : min(ends, default=len(words))]


def settings(page: str) -> Iterator[tuple[str | None, list[str]]]:
    """Yield preset and settings of each trainer command that reads no file."""
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
SHELL = {"sh", "bash", "console"}
JSONPATH = re.compile(r"(trainingjob|trainingqueue|gpupool)s?[ /]\S+ .*jsonpath=\'?\{\.([\w.]+)\}")


def lines_of(page: str, program: str) -> Iterator[str]:
    """Yield the commands of a program in a page, each on one line."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        for line in body.replace("\\\n", " ").splitlines() if language in SHELL else ():
            command = PROMPT.sub("", line.strip()).partition("   # ")[0]
            if command.startswith(f"{program} "):
                yield command


def has_path(schema: dict[str, Any], path: str) -> bool:
    for name in path.split("."):
        fields: dict[str, Any] = schema.get("properties") or {}
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
    specs = [each.manifest()["spec"] for each in DEFINITIONS]
    names = {
        name
        for spec in specs
        for name in (
            spec["names"]["plural"],
            spec["names"]["singular"],
            *spec["names"].get("shortNames", ()),
        )
    }
    schemas = {
        spec["names"]["singular"]: spec["versions"][0]["schema"]["openAPIV3Schema"]
        for spec in specs
    }
    for command in lines_of(page, "kubectl"):
        assert {kind.lower() for kind in OUR_KIND.findall(command)} <= names, command
        for kind, path in JSONPATH.findall(command):
            assert path == "metadata.uid" or has_path(schemas[kind], path), command


def test_commands_in_our_pods_need_only_what_the_released_image_has() -> None:
    """The released image has no coreutils: no cat, and no tar for kubectl cp."""
    texts = [path.read_text() for path in PAGES.values()]  # the command line's help is one
    run = re.compile(r"kubectl exec [^\n]*?deploy/drumline-\w+(?: \\\n)? +-- (\w+)")
    programs = [program for text in texts for program in run.findall(text)]
    assert len(programs) > 3
    assert set(programs) <= {"sh", "python3"}
    copies = re.compile(r"kubectl cp [^\n]*drumline-(?:operator|archiver|notifier)")
    assert not any(copies.search(text) for text in texts)
