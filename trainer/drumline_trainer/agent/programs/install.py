"""Brings the agent into a pod whose image knows nothing of it: an init container of our own image.

It copies the bundle (an own Python with the agent, made by docker/bundle.py) into a folder that the
user's container mounts, and writes a hosts file for a pod that is still alone. It needs no record,
no token and no network.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.base.settings import AgentEnv
from drumline_trainer.agent.programs import gang_files
from drumline_trainer.contract import BUNDLE_SOURCE, BUNDLE_TARGET, GANG_FOLDER, Env, ExitCode


def install(
    environ: Mapping[str, str],
    *,
    source: Path = Path(BUNDLE_SOURCE),
    target: Path = Path(BUNDLE_TARGET),
) -> int:
    """Copy the bundle and write the hosts file. Returns the init container's exit code."""
    if not (source / "bin" / "python3").exists():
        sys.stderr.write(
            f"{source}: this image carries no agent for the images of others; set the chart's "
            "agentImage to one that does, such as the operator's\n"
        )
        return ExitCode.CONFIG
    folder = Path(environ.get(AgentEnv.GANG_FOLDER, GANG_FOLDER))
    hosts = gang_files.alone(
        own_name=socket.gethostname(), address=environ.get(Env.POD_IP, "127.0.0.1")
    )
    try:
        _copy_folder(source, target)
        gang_files.write_in_place(folder, {"hosts": hosts, "hostfile": "", "members.json": "{}\n"})
    except OSError as error:
        sys.stderr.write(f"the agent cannot be installed into {target}: {error}\n")
        return ExitCode.APPLICATION
    log(AgentEvent.FINISHED, exit_code=ExitCode.OK)
    return ExitCode.OK


def _copy_folder(source: Path, target: Path) -> None:
    """What is in it, not the folder's own mode and times: the target is a volume that root owns.

    A former try of this container may have begun.
    """
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        copy = target / entry.name
        if entry.is_symlink():
            copy.unlink(missing_ok=True)
            copy.symlink_to(entry.readlink())
        elif entry.is_dir():
            _copy_folder(entry, copy)
        else:
            shutil.copyfile(entry, copy)
            copy.chmod(0o755 if os.access(entry, os.X_OK) else 0o644)
