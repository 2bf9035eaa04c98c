"""Gangs of agents that run a command of the user's, each pod on a loopback address."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline_contract import STORE_PORTS, Env, Launch, LaunchSettings
from tests.faults.agent.agents import Agent, Band
from tests.faults.agent.gang import Gang


@dataclass
class CommandBand(Band):
    """Makes agents that run `command`."""

    command: list[str] = field(default_factory=list[str])

    @property
    def store_port(self) -> int:
        """The first of its own: the store of a script listens on every address of the machine."""
        _, high, low, *_ = map(int, self.prefix.split("."))
        return 30_000 + STORE_PORTS * ((high * 256 + low) % 40)

    async def start(self, index: int, **options: Any) -> Agent:
        port = {"DRUMLINE_STORE_PORT": str(self.store_port)}
        options["variables"] = port | (options.get("variables") or {})
        options |= {"program": "command", "arguments": ["--", *self.command]}
        return await super().start(index, **options)


def launched(
    settings: LaunchSettings | Launch, *, gpus: int = 1, **variables: str
) -> dict[str, str]:
    """The variables of a pod of a template with `launch`, or with more settings."""
    if isinstance(settings, Launch):
        settings = LaunchSettings(launch=settings)
    return {Env.LAUNCH: settings.encode(), Env.GPUS_PER_NODE: str(gpus), **variables}


def script_in(folder: Path, text: str) -> list[str]:
    """The command that runs this script: standard library only, no package of ours."""
    path = folder / "train.py"
    path.write_text(text)
    return [sys.executable, "-I", "-u", str(path)]


async def start_commands(
    gang: Gang,
    count: int,
    *,
    script: str,
    launch: LaunchSettings | Launch = Launch.PER_GPU,
    ranks: int = 1,
    **variables: str,
) -> None:
    """Start the pods of a gang that runs this script, and push its first record."""
    assert isinstance(gang.band, CommandBand)
    gang.band.command = gang.band.command or script_in(gang.band.folder, script)
    kind = launch if isinstance(launch, Launch) else launch.launch
    per_gpu = kind is Launch.PER_GPU
    options = launched(launch, gpus=ranks, FOLDER=str(gang.band.folder), **variables)
    await gang.start(count, ranks=ranks if per_gpu else 1, variables=options)
    await gang.push()
