"""The processes of a cluster: started apart from the terminal, found again by a mark they carry.

Every process gets the cluster's folder and its own role in its environment, and children
(containerd's shims) inherit them. So no list of pids has to survive a killed `up`, and a recycled
pid is never hit: a signal goes through a pidfd whose process was seen carrying the mark.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.model import ClusterError

_FOLDER_MARK = "DRUMLINE_CLUSTER_FOLDER"
_ROLE_MARK = "DRUMLINE_CLUSTER_ROLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a cluster; `role` is a path such as `node-0/kubelet`."""

    role: str
    pid: int


def log_path(folder: Path, role: str) -> Path:
    """Where the process with that role writes."""
    return folder / "logs" / f"{role.replace('/', '-')}.log"


def mark(folder: Path, role: str) -> dict[str, str]:
    """The environment by which a process of the cluster is known."""
    return {_FOLDER_MARK: str(folder), _ROLE_MARK: role}


@contextlib.contextmanager
def marked_children(folder: Path) -> Iterator[None]:
    """Let every command that is run meanwhile carry the mark too.

    A start that is killed leaves the command it was waiting for: `down` has to find that.
    """
    before = {name: os.environ.get(name) for name in (_FOLDER_MARK, _ROLE_MARK)}
    os.environ.update(mark(folder, "up"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spawn(
    argv: Sequence[str | Path],
    *,
    folder: Path,
    role: str,
    netns: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start a program that outlives this one, in a session of its own, logging to its own file."""
    command = [str(word) for word in argv]
    if netns is not None:
        # not `ip netns exec`: that remounts /sys, and a kubelet then finds no control groups
        command = ["/usr/bin/nsenter", f"--net=/run/netns/{netns}", "--", *command]
    log = log_path(folder, role)
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        command[0],
        command,
        {**os.environ, **(env or {}), **mark(folder, role)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    started = Process(role=role, pid=pid)
    _wait_for_mark(started, folder)
    return started


def _wait_for_mark(process: Process, folder: Path) -> None:
    """Return once `find` sees it: the kernel sets a program's environment a moment after its start.

    A process that ended meanwhile has nothing to be seen any more.
    """
    environ = Path(f"/proc/{process.pid}/environ")
    while _role_in(environ, folder) is None and not _is_zombie(process.pid):
        time.sleep(0.0005)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended; this process, its parent, has not asked for its exit code yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def find(folder: Path) -> list[Process]:
    """The living processes that carry this cluster's mark."""
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            role = _role_in(entry / "environ", folder)
            if role is not None:
                results.append(Process(role=role, pid=int(entry.name)))
    return sorted(results, key=lambda process: (process.role, process.pid))


def _role_in(environ: Path, folder: Path) -> str | None:
    try:
        entries = environ.read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return None
    if f"{_FOLDER_MARK}={folder}".encode() not in entries:
        return None
    prefix = f"{_ROLE_MARK}=".encode()
    roles = [entry.removeprefix(prefix).decode() for entry in entries if entry.startswith(prefix)]
    return roles[0] if roles else ""


def kill(folder: Path, *, role_prefix: str = "") -> int:
    """SIGKILL every process of the cluster whose role begins so; return when all are gone.

    Returns:
        How many processes were killed.

    Raises:
        ClusterError: one did not die within 20 s.
    """
    killed = 0
    deadline = time.monotonic() + 20
    while True:  # again, for a containerd may have started a shim since the list was made
        targets = [each for each in find(folder) if each.role.startswith(role_prefix)]
        if not targets:
            return killed
        if time.monotonic() > deadline:
            raise ClusterError(f"these processes do not die: {targets}")
        with contextlib.ExitStack() as handles:
            pidfds = [fd for each in targets if (fd := _open(each, folder, handles)) is not None]
            for pidfd in pidfds:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            for pidfd in pidfds:
                select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        for each in targets:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)
        killed += len(pidfds)


def _open(process: Process, folder: Path, handles: contextlib.ExitStack) -> int | None:
    """A handle on exactly the process that carries the mark, whatever happens to its number."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    handles.callback(os.close, pidfd)
    carries_mark = _role_in(Path(f"/proc/{process.pid}/environ"), folder) is not None
    return pidfd if carries_mark else None


def exited(process: Process) -> bool:
    """Whether a process that this program started has ended (and is collected)."""
    try:
        return os.waitpid(process.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def wait_until(
    check: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float,
    folder: Path,
    needs: Sequence[Process] = (),
    every_seconds: float = 0.05,
) -> None:
    """Return when `check` holds; fail at once when a process it needs has died.

    Raises:
        ClusterError: with the end of the log that tells why.
    """
    for _ in _ticks(timeout_seconds, every_seconds):
        if check():
            return
        for process in needs:
            if exited(process):
                raise ClusterError(f"{process.role} ended early:\n{_tail(folder, process.role)}")
    logs = "\n".join(_tail(folder, process.role) for process in needs)
    raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s\n{logs}")


def _ticks(timeout_seconds: float, every_seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(every_seconds)


def _tail(folder: Path, role: str) -> str:
    log = log_path(folder, role)
    if not log.exists():
        return ""
    return f"{log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:])
