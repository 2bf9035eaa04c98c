"""Requirements of torch.compile on a machine: a compiler, and a folder for its results."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_contract.config import ConfigError

CACHE_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
_COMPILERS: Final = {
    "cpu": ("C++", "CXX", ("g++", "clang++", "c++")),
    "cuda": ("C", "CC", ("gcc", "clang", "cc")),  # what launches Triton's kernels is compiled
}
"""Device -> language, variable that names another one, usual names."""


def machine_folder(
    *,
    device: str,
    temporary: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
) -> Path:
    """Return the folder in which the ranks of this machine compile, after a check for a compiler.

    torch loads programs and pickles from it, so it belongs to this user alone, or is the one that
    the environment names (in a pod, the pod's). Ranks that restart in place find their kernels
    there.

    Args:
        device: type of the rank's device, cpu or cuda.
        temporary: parent of the folder; None: this machine's place for temporary files.
        environ: the process's environment.
        which: finds a program.

    Raises:
        ConfigError: there is no such compiler, or a program that it needs is missing.
    """
    language, variable, usual = _COMPILERS[device]
    # An environment variable replaces the usual names, as torch itself treats it.
    names = (environ[variable],) if environ.get(variable) else usual
    if not any(which(name) for name in names):
        raise ConfigError(
            f"compile: torch's compiler needs a {language} compiler, and this image has no"
            f" {' or '.join(names[:2])}; install one, or name it in {variable}, or leave compile"
            " out"
        )
    if device == "cpu" and not which("openssl"):  # which tells compiled headers apart
        raise ConfigError(
            "compile: for processors torch's compiler runs the program openssl, and this image has"
            " none; install it, or leave compile out"
        )
    if named := environ.get(CACHE_VARIABLE):
        return Path(named)
    return _own_folder(temporary or Path(tempfile.gettempdir()))


def _own_folder(temporary: Path) -> Path:
    """Return a folder that only this user can write to, the same for all ranks of a pod."""
    folder = temporary / f"drumline-compiled-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # lstat: a link of another user would fail this check.
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return folder
    # A name that another user took first is left alone.
    return Path(tempfile.mkdtemp(prefix="drumline-compiled-", dir=temporary))
