"""Programs of the agent, `python -m drumline_agent PROGRAM`.

run                     trainer pods
join NAME=VALUE ...     pods of a template that is started by itself: their init container
install                 pods of a template that is supervised: their init container
command -- PROGRAM ...  and their main container
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from drumline_agent.base.settings import AgentSettings, AgentSettingsError
from drumline_agent.commands.launch_plan import LaunchPlan
from drumline_agent.programs.command import run_command
from drumline_agent.programs.install import install
from drumline_agent.programs.join import join
from drumline_agent.programs.run import run
from drumline_contract import ContractError, Env, ExitCode

PROGRAMS = ("run", "join", "install", "command")


def main() -> int:
    """Run one of the agent's programs. Returns the container's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m drumline_agent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument(
        "words", nargs="*", help="join: variables; command: the user's command, after `--`"
    )
    arguments = parser.parse_args()
    if arguments.program == "install":
        return install(os.environ)
    try:
        settings = AgentSettings.from_environment(_environment(arguments))
    except AgentSettingsError as error:
        return _unusable(str(error))
    match arguments.program:
        case "run":
            return asyncio.run(run(settings))
        case "join":
            return asyncio.run(join(settings))
        case _:
            return _command(settings, arguments.words)


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the process's variables, and those that the words of `join` set."""
    words: list[str] = arguments.words if arguments.program == "join" else []
    return {**os.environ, **dict(_variable(word) for word in words)}


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise AgentSettingsError(f"{word!r}: want NAME=VALUE")
    return name, value


def _command(settings: AgentSettings, command: list[str]) -> int:
    if settings.launch is None:
        return _unusable(f"{Env.LAUNCH}: must be set for a command")
    if not command:
        return _unusable("no command: name it after `--`")
    try:
        plan = LaunchPlan.make(command, launch=settings.launch, gpus=settings.gpus)
    except ContractError as error:
        return _unusable(f"{Env.LAUNCH}: {error}")
    return asyncio.run(run_command(settings, plan=plan))


def _unusable(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return ExitCode.CONFIG


if __name__ == "__main__":
    sys.exit(main())
