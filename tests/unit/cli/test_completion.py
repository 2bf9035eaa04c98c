"""The scripts as the shells run them."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from drumline_cli.arguments import parser
from drumline_cli.completion import script

BASH = script(parser("drumline"), kind="bash")


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(map(shlex.quote, ("drumline", *words)))
    asks = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _drumline"
    shows = "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{BASH}\n{asks}; {shows}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("us",), ["usage"]),
        (("list", "--all"), ["--all-namespaces"]),
        (("list", "-o", ""), ["table", "json"]),
        (("report", "-o", "h"), ["html"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


def test_every_option_of_a_command_is_offered() -> None:
    offered = completed("usage", "-")
    assert {"--since", "--by", "--output", "-o", "--file", "--help"} <= set(offered)
    assert "--" not in offered
    assert "--pool" not in offered


def test_where_nothing_is_fixed_bash_offers_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "all.json").touch()
    monkeypatch.chdir(folder)
    assert completed("list", "-f", "al") == ["all.json"]
    assert completed("decide", "al") == ["all.json"]


def test_zsh_runs_the_script_of_bash() -> None:
    assert script(parser("drumline"), kind="zsh").endswith(BASH)


def test_fish_knows_every_command_and_escapes_their_summaries() -> None:
    text = script(parser("drumline"), kind="fish")
    assert "-n '__fish_seen_subcommand_from usage' -l since -r" in text
    assert "-n '__fish_seen_subcommand_from list' -l output -x -a 'table json'" in text
    for line in text.splitlines():
        unescaped = re.sub(r"\\.", "", line)
        assert unescaped.count("'") % 2 == 0, line
