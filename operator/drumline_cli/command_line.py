"""Parse a command line: arrange its words, and name the mistake in one sentence.

Only argparse is imported, so that `--help` and a mistyped option are answered at once.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from drumline_cli.exit_codes import CommandExit
from drumline_cli.grammar import GROUPS, arguments, commands

# These options may stand before the command, as with kubectl.
_GLOBAL: Final = frozenset(
    (
        "-n",
        "--namespace",
        "--context",
        "--kubeconfig",
        "--as",
        "--as-group",
        "--as-uid",
        "-o",
        "--output",
    )
)
"""Options with a value that may stand before the command."""
_NAMESPACE: Final = frozenset(("-n", "--namespace"))
_WITHOUT_COMMAND: Final = frozenset(("-h", "--help", "--version"))
_TAKES_COMMAND: Final = frozenset(("run", "shell", "clone"))
"""Commands that take a command line of the user's after `--`."""
# Users of other tools type these words first. The hint saves them a look at the help.
_OTHER_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("submit", "sbatch", "launch", "create", "start", "srun"), "run"),
    **dict.fromkeys(("ls", "ps", "status", "get", "jobs", "sacct"), "list"),
    **dict.fromkeys(("squeue", "queues", "qstat"), "queue"),
    **dict.fromkeys(("scancel", "cancel", "kill", "suspend", "qdel"), "stop"),
    **dict.fromkeys(("restart", "requeue", "recover"), "retry"),
    **dict.fromkeys(("rm", "remove"), "delete"),
    **dict.fromkeys(("exec", "ssh", "attach"), "shell"),
    **dict.fromkeys(("describe", "explain"), "report"),
    **dict.fromkeys(("sinfo", "node"), "nodes"),
    **dict.fromkeys(("put", "push", "pull", "copy", "download", "upload"), "cp"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("check", "preflight"), "doctor"),
    **dict.fromkeys(("lint", "validate"), "decide"),
    "compare": "diff",
    "sweeps": "sweep",
    "version": "--version",
}
"""Words of kubectl, Slurm and others, and the command that does it here."""
_OTHER_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--partition", "--qos"), "--queue"),
    **dict.fromkeys(
        ("--gres", "--gpus-per-node", "--nproc-per-node", "--nproc_per_node"), "--gpus"
    ),
    **dict.fromkeys(("--mem", "--cpus-per-task", "--cpus"), "--resources"),
    **dict.fromkeys(("--chdir", "--workdir"), "--folder"),
    **dict.fromkeys(("--volume", "--volumes"), "--claim"),
    "--array": "--sweep",
    "--dependency": "--after",
}
"""Options of Slurm and others, and those that do it here."""
_CLOSE: Final = 0.7
"""Least similarity of an option that is suggested. Below it, --wait would be taken for --claim."""
_MAX_SHOWN: Final = 64


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and the command that shows its help."""

    def error(self, message: str) -> NoReturn:
        # argparse would print the whole usage, which hides the sentence with the mistake.
        """End the process with a sentence."""
        self.exit(CommandExit.BAD_INPUT, f"{self.prog}: {message}\nSee {self.prog} --help\n")

    def format_help(self) -> str:
        """Return the help. The whole program lists its commands in groups."""
        if not any(action.dest == "command" for action in arguments(self)):
            return super().format_help()
        return f"{self.description}\n\n{_groups(self)}\n{self.epilog}"


def parse(whole: CommandParser, given: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments, or end the process with what is wrong.

    Args:
        whole: the parser of all commands.
        given: the words before `--`.
    """
    # Phase 1: bring the command to the front.
    words = arranged(given)
    if not words:
        whole.print_help(sys.stdout)
        whole.exit(CommandExit.DONE)
    known = {each.name: each.parser for each in commands(whole)}
    name = words[0]
    if name in _WITHOUT_COMMAND:
        return whole.parse_args(words)
    if name not in known:
        # Phase 2: explain common mistakes before argparse does, because its messages are less
        # exact.
        whole.error(_unknown_command(name, tuple(known)))
    parser = known[name]
    if name in _TAKES_COMMAND and (stray := stray_word(parser, words[1:])) is not None:
        example = f"{parser.prog} {'JOB ' if name != 'run' else '... '}-- {stray} ..."
        parser.error(f"write -- before the command {stray[:_MAX_SHOWN]!r}: {example}")
    # Phase 3: parse. Unknown words get a suggestion.
    chosen, unknown = whole.parse_known_args(words)
    if unknown:
        parser.error(_unknown_word(parser, unknown[0]))
    return chosen


def arranged(given: Sequence[str]) -> list[str]:
    """Return the words with the command first: `-n team list` is `list -n team`.

    `help COMMAND` is `COMMAND --help`.
    """
    words = list(given)
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] in _WITHOUT_COMMAND:
            return words[at:] if at == 0 else [words[at], *words[:at], *words[at + 1 :]]
        # The value of a global option is not the command.
        at += 2 if words[at] in _GLOBAL else 1
    if at >= len(words):
        return words
    if words[at] == "help":
        return [*words[at + 1 : at + 2], "--help"]
    return [words[at], *words[:at], *words[at + 1 :]]


def stray_word(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Return the first word that is neither an option, nor its value, nor a named argument."""
    options = {
        spelling: action for action in arguments(parser) for spelling in action.option_strings
    }
    # A positional argument takes a word of its own.
    places = sum(not action.option_strings for action in arguments(parser))
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            places -= 1
            if places < 0:
                return word
            continue
        action = options.get(word)
        if action is not None and action.nargs != 0:
            # The next word is the value of this option.
            next(rest, None)
        elif action is None and not _has_value(word, options):
            return None  # an unknown option: nobody knows whether a value follows
    return None


def _has_value(word: str, options: Mapping[str, argparse.Action]) -> bool:
    """Return whether a word is a known option with its value: `--image=x` or `-N2`."""
    short = word[:2] in options and not word.startswith("--")
    return short or word.partition("=")[0] in options


def _unknown_command(name: str, known: Sequence[str]) -> str:
    shown = name[:_MAX_SHOWN]
    if name.startswith("-"):
        return f"unknown option {shown}. The command comes first, such as drumline list {shown}"
    meant = _OTHER_WORDS.get(name)
    # A known word of another tool is a better hint than similar letters.
    near = [meant] if meant else difflib.get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"unknown command {shown!r}{hint}"


def _unknown_word(parser: argparse.ArgumentParser, word: str) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word[:_MAX_SHOWN]!r}"
    spelling = word.partition("=")[0]
    if spelling in _NAMESPACE:
        name = parser.prog.rpartition(" ")[2]
        return f"unknown option {spelling}: {name} works on no single namespace"
    known = [each for action in arguments(parser) for each in action.option_strings]
    meant = _OTHER_OPTIONS.get(spelling)
    near = difflib.get_close_matches(spelling, known, n=1, cutoff=_CLOSE)
    near = [meant] if meant in known else near
    # One suggestion only, since option names are often similar.
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown option {spelling[:_MAX_SHOWN]}{hint}"


def _groups(whole: argparse.ArgumentParser) -> str:
    """Return the usage and the commands below the names of their groups."""
    named = {each.name: each.summary for each in commands(whole)}
    width = max(map(len, named))
    lines = [f"usage: {whole.prog} COMMAND [OPTIONS]", ""]
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {named[name]}" for name in names if name in named]
        lines.append("")
    return "\n".join(lines)
