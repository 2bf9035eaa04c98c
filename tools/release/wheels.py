"""The wheels: the distribution of operator, command line and trainer, and the client's own.

hatchling writes the same bytes for the same files; its own version is the one of the lock file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.cluster.model import ClusterError
from tools.release.source import ROOT, Source

PROJECTS = (ROOT, ROOT / "trainer" / "drumline_client")


def build_wheels(folder: Path, *, source: Source) -> list[Path]:
    """Build them into an existing folder.

    Raises:
        ClusterError: a build failed, with its last words.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise ClusterError("the command `uv` is missing: `make setup` installs it")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)}
    for project in PROJECTS:
        command = [uv, "build", "--quiet", "--wheel", "--python", sys.executable]
        command += ["--out-dir", str(folder), str(project)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"uv build {project.name}: {done.stderr.strip()[-800:]}")
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's own, for folders inside a repository
    return sorted(folder.glob("*.whl"))
