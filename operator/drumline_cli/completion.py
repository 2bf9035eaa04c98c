"""Scripts with which bash, zsh and fish complete commands, options, their fixed values, and names.

The scripts are generated from the parser. They read names of jobs, queues, pools and namespaces
from the cluster (`completion_words`), for at most two seconds. If neither a command nor an option
fits, they complete files. zsh runs bash's script through its own `bashcompinit`. kubectl completes
a plugin through an executable `kubectl_complete-drumline` on the PATH. These scripts complete
`drumline` and `kubectl-drumline`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from drumline_cli.arguments import parser
from drumline_cli.commands import Output
from drumline_cli.completion_words import COMPLETE, JOBS, NAMESPACES, POOLS, QUEUES
from drumline_cli.grammar import Command, arguments, commands

# `{{` stands for one brace, because the text is a format.
_BASH: Final = """\
# bash completion of drumline
_drumline_names() {{
  "${{COMP_WORDS[0]}}" __complete "$1" "${{COMP_WORDS[@]:1}}" 2>/dev/null
}}
_drumline() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local at=1 command words="" names=""
  while (( at < COMP_CWORD )); do
    case "${{COMP_WORDS[at]}}" in
      -n|--namespace|--context|--kubeconfig|--as|--as-group|--as-uid) (( at += 2 )) ;;
      -*) (( at += 1 )) ;;
      *) break ;;
    esac
  done
  (( at > COMP_CWORD )) && at=$COMP_CWORD
  command="${{COMP_WORDS[at]}}"
  COMPREPLY=()
  if (( COMP_CWORD == at )); then
    words={commands}
  else
    case "$command $before" in
{values}
    esac
    if [[ -z $words ]]; then
      case "$command" in
{options}
      esac
      if [[ $word == -* ]]; then words="${{words%% -- *}}"; else words="${{words##* -- }}"; fi
      [[ -n $names && $word != -* ]] && words="$words $(_drumline_names "$names")"
    fi
  fi
  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ -z $words || ( ${{#COMPREPLY[@]}} -eq 0 && $word != -* ) ]] \\
    && COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _drumline drumline kubectl-drumline
"""
_KIND_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("job", "left", "right", "after"), JOBS),
    "queue": QUEUES,
    "pool": POOLS,
    "namespace": NAMESPACES,
}
"""The kind of the names that an argument takes, by its destination."""
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCommand:
    """Completions of a command.

    Attributes:
        summary: a line about it.
        options: every spelling of every option.
        values: the fixed values of an option, by its spelling.
        places: the fixed values of a positional argument.
        names: the kind of the names that a positional argument takes; empty: none.
        named_by: the kind of the names that an option takes, by its spelling.
        files: options whose value is anything: files are offered.
    """

    summary: str
    options: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    places: tuple[str, ...]
    names: str
    named_by: Mapping[str, str]
    files: tuple[str, ...]


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Print the script for a shell."""
    return Output(text=script(parser("drumline"), kind=chosen.shell))


def script(grammar: argparse.ArgumentParser, *, kind: str) -> str:
    """Return the script for `bash`, `zsh` or `fish`."""
    completed = {each.name: _completed(each) for each in commands(grammar)}
    # fish has one line per option. bash and zsh share a function.
    if kind == "fish":
        return "".join(f"{line}\n" for line in _fish(completed))
    return _bash(completed) if kind == "bash" else _ZSH + _bash(completed)


def _completed(command: Command) -> CompletedCommand:
    options: list[str] = []
    values: dict[str, tuple[str, ...]] = {}
    places: list[str] = []
    files: list[str] = []
    named_by: dict[str, str] = {}
    names = ""
    for action in arguments(command.parser):
        # An argument with fixed choices needs no names of the cluster.
        fixed = tuple(map(str, action.choices or ()))
        kind = "" if fixed else _KIND_OF.get(action.dest, "")
        options += action.option_strings
        # Positional arguments complete by position, and options by the word before.
        if not action.option_strings:
            places += fixed
            names = names or kind
        # A flag takes no value, so nothing follows it.
        elif action.nargs != 0:
            values.update((spelling, fixed) for spelling in action.option_strings if fixed)
            named_by.update((spelling, kind) for spelling in action.option_strings if kind)
            files += [each for each in action.option_strings if not fixed and not kind]
    return CompletedCommand(
        summary=command.summary,
        options=tuple(options),
        values=values,
        places=tuple(places),
        names=names,
        named_by=named_by,
        files=tuple(files),
    )


def _bash(completed: Mapping[str, CompletedCommand]) -> str:
    values: list[str] = []
    options: list[str] = []
    for name, command in completed.items():
        for spelling, fixed in command.values.items():
            # The list is one shell word, so its spaces must be quoted.
            words = shlex.quote(" ".join(fixed))
            values.append(f"      {shlex.quote(f'{name} {spelling}')}) words={words} ;;")
        for spelling, kind in command.named_by.items():
            values.append(
                f"      {shlex.quote(f'{name} {spelling}')}) words=$(_drumline_names {kind}) ;;"
            )
        if command.files:
            pattern = "|".join(shlex.quote(f"{name} {spelling}") for spelling in command.files)
            values.append(f'      {pattern}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
        # after the last "-- " stands what is offered where no option is begun
        words = shlex.quote(f"{' '.join(command.options)} -- {' '.join(command.places)}")
        options.append(f"        {name}) words={words} names={command.names} ;;")
    return _BASH.format(
        commands=shlex.quote(" ".join(completed)),
        values="\n".join(values),
        options="\n".join(options),
    )


def _fish(completed: Mapping[str, CompletedCommand]) -> Iterator[str]:
    yield "# fish completion of drumline"
    # A command is offered only until one was typed.
    for name, command in completed.items():
        summary = _fish_quoted(command.summary)
        yield f"complete -c drumline -n __fish_use_subcommand -f -a {name} -d {summary}"
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for spelling in command.options:
            flag = f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}"
            fixed = command.values.get(spelling)
            takes = f" -x -a {_fish_quoted(' '.join(fixed))}" if fixed else ""
            if kind := command.named_by.get(spelling):
                takes = f" -x -a {_fish_quoted(_asked(kind))}"
            takes = " -r" if spelling in command.files else takes
            yield f"complete -c drumline {seen} {flag}{takes}"
        if command.places:
            yield f"complete -c drumline {seen} -f -a {_fish_quoted(' '.join(command.places))}"
        if command.names:
            yield f"complete -c drumline {seen} -f -a {_fish_quoted(_asked(command.names))}"


def _asked(kind: str) -> str:
    """Return fish's substitution that asks the cluster for names."""
    return f"(drumline {COMPLETE} {kind} (commandline -opc)[2..-1])"


def _fish_quoted(text: str) -> str:
    """Within single quotes fish knows two escapes: of the quote and of the backslash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
