"""The scripts as the shells run them."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from drumline_cli.arguments import parser
from drumline_cli.completion import script
from drumline_cli.completion_words import options_of
from drumline_cli.program import main

BASH = script(parser("drumline"), kind="bash")


def completed(*words: str, before: str = "") -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(map(shlex.quote, ("drumline", *words)))
    asks = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _drumline"
    shows = "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{BASH}\n{before}\n{asks}; {shows}"],
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
        (("list", "-o", ""), ["table", "json", "yaml", "name"]),
        (("-n", "team", "us"), ["usage"]),
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


def test_names_of_the_cluster_are_asked_of_the_program() -> None:
    """A function of the shell stands for the program."""
    stand_in = "drumline() { [[ $1 == __complete && $2 == KIND ]] && echo one && echo two; }"
    for words, kind in (
        (("stop", ""), "jobs"),
        (("list", "-q", ""), "queues"),
        (("queue", ""), "queues"),
        (("list", "-n", ""), "namespaces"),
        (("-n", "team", "stop", ""), "jobs"),
    ):
        assert completed(*words, before=stand_in.replace("KIND", kind)) == ["one", "two"]


def test_an_unfinished_line_names_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-n", "team", "list", "--context=c", "--kubeconfig", "f", "-q", ""]
    assert options_of(words) == {"namespace": "team", "context": "c", "kubeconfig": "f"}
    assert options_of(["stop", "-nteam", ""]) == {"namespace": "team"}
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["__complete", "jobs", "stop", ""]) == 0  # and prints no error


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
    assert "-n '__fish_seen_subcommand_from list' -l output -x -a 'table json yaml name'" in text
    for line in text.splitlines():
        unescaped = re.sub(r"\\.", "", line)
        assert unescaped.count("'") % 2 == 0, line
