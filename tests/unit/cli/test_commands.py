"""The table from a command's name to the module that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from drumline import __main__ as program
from drumline_cli import commands
from drumline_cli.arguments import parser
from drumline_cli.command_line import parse
from drumline_cli.errors import BadInput
from drumline_cli.grammar import commands as known


def test_every_command_of_the_grammar_has_a_module() -> None:
    assert {each.name for each in known(parser("drumline"))} == commands.MODULES.keys()


@pytest.mark.parametrize(
    "module", sorted({*commands.MODULES.values(), *program.PROCESSES.values(), program.COMMANDS})
)
def test_every_module_of_a_table_exists(module: str) -> None:
    assert find_spec(module) is not None


@pytest.mark.parametrize(
    ("command", "package", "extra"), [("list", "msgspec", "cli"), ("simulate", "yaml", "simulator")]
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, command: str, package: str, extra: str
) -> None:
    def lacking(_module: str) -> object:
        raise ModuleNotFoundError(name=f"{package}.inside")

    monkeypatch.setattr(commands, "import_module", lacking)
    with pytest.raises(
        BadInput,
        match=rf"package {package}\. Run in a checkout: pipx install --force '\.\[{extra}\]'",
    ):
        commands.run(argparse.Namespace(command=command), {})


def test_a_missing_module_of_ours_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MODULES", {"list": "drumline.no_such_module"})
    with pytest.raises(ModuleNotFoundError):
        commands.run(argparse.Namespace(command="list"), {})


@pytest.mark.parametrize(
    ("words", "partner"),
    [
        (("doctor", "--image", "registry.example/trainer:1"), "--image needs --probe"),
        (("doctor", "--pull-secret", "registry"), "--pull-secret needs --probe"),
        (("doctor", "--seconds", "60"), "--seconds needs --probe"),
        (("logs", "llama", "--seconds", "0"), "--seconds needs --around"),
    ],
)
def test_an_option_without_its_partner_is_refused(words: Sequence[str], partner: str) -> None:
    with pytest.raises(BadInput, match=partner):
        commands.run(parse(parser("drumline"), words), {})
