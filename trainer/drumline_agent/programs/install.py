"""Brings the agent into a pod whose image knows nothing of it: an init container of our own image.

It copies the bundle (an own Python with the agent, made by docker/bundle.py) into a folder that the
user's container mounts, unpacks the code that the job brings, and writes a hosts file for a pod
that is still alone. It needs no record, no token and no network.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.settings import AgentEnv
from drumline_agent.programs import gang_files
from drumline_agent.programs.unpack_code import (
    BadCodeArchive,
    code_entries,
    read_parts,
    unpack_code,
)
from drumline_contract import (
    BUNDLE_SOURCE,
    BUNDLE_TARGET,
    CODE_FOLDER,
    CODE_PARTS_FOLDER,
    GANG_FOLDER,
    Env,
    ExitCode,
)


def install(
    environ: Mapping[str, str],
    *,
    source: Path = Path(BUNDLE_SOURCE),
    target: Path = Path(BUNDLE_TARGET),
    code_parts: Path = Path(CODE_PARTS_FOLDER),
    code: Path = Path(CODE_FOLDER),
) -> int:
    """Copy the bundle, unpack the code, write the hosts file.

    Args:
        environ: environment of the init container.
        source: the bundle in this image.
        target: the volume that gets it.
        code_parts: the parts of the job's code.
        code: the volume that gets the code, if the job brings any.

    Returns:
        The init container's exit code.
    """
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
        if digest := environ.get(Env.CODE_DIGEST):
            unpack_code(code_entries(read_parts(code_parts), digest=digest), target=code)
    except BadCodeArchive as error:
        sys.stderr.write(f"template.code: {error}; submit the job again with drumline run\n")
        return ExitCode.CONFIG
    except OSError as error:
        sys.stderr.write(f"the agent or the code cannot be installed: {error}\n")
        return ExitCode.APPLICATION
    log(AgentEvent.FINISHED, exit_code=ExitCode.OK)
    return ExitCode.OK


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the contents, but not the folder's mode and times: root owns the target volume.

    Files of an interrupted copy are replaced.
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
