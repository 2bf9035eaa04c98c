"""`python -m drumline_trainer.agent run` (trainer pods) and `... join` (pods of one's own)."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from drumline_trainer.agent.base.settings import AgentSettings, AgentSettingsError
from drumline_trainer.agent.programs.join import join
from drumline_trainer.agent.programs.run import run
from drumline_trainer.contract import ExitCode

PROGRAMS = {"run": run, "join": join}


def main() -> int:
    """Run one of the agent's programs. Returns the container's exit code."""
    parser = argparse.ArgumentParser(prog="python -m drumline_trainer.agent", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    program = PROGRAMS[parser.parse_args().program]
    try:
        settings = AgentSettings.from_environment(os.environ)
    except AgentSettingsError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.CONFIG
    return asyncio.run(program(settings))


if __name__ == "__main__":
    sys.exit(main())
