"""Everything the agent reads from its environment, read once and nowhere else.

The variables of `contract.Env` come from the operator. Those of `AgentEnv` have defaults that are
right in a pod; they exist for images with another trainer and for running agents outside of pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from drumline_contract import (
    AGENT_PORT,
    GANG_FOLDER,
    STORE_PORT,
    TOKEN_FILE,
    TOKEN_FILE_VARIABLE,
    ContractError,
    Env,
    Launch,
    LaunchSettings,
    checkpoint_place,
)

SNAPSHOT_ROOT = "/dev/shm/drumline"  # noqa: S108 - memory of the pod, or of a user's machine


class AgentSettingsError(ValueError):
    """The agent cannot start with this environment; names the variable."""


class AgentEnv(StrEnum):
    """Optional variables of the agent itself."""

    ADDRESS = "DRUMLINE_AGENT_ADDRESS"
    """Address the HTTP API binds to; all addresses of the pod by default."""
    PORT = "DRUMLINE_AGENT_PORT"
    """Port of the HTTP API, the same in all agents of a job."""
    STORE_PORT = "DRUMLINE_STORE_PORT"
    """First of the rendezvous store's ports."""
    STORE_IS_OPEN = "DRUMLINE_STORE_IS_OPEN"
    """Not empty: the store hears every address. For networks that rewrite the addresses of pods."""
    TOKEN_FILE = TOKEN_FILE_VARIABLE
    GANG_FOLDER = "DRUMLINE_GANG_FOLDER"
    TERMINATION_LOG = "DRUMLINE_TERMINATION_LOG"
    PEER_LOST_SECONDS = "DRUMLINE_PEER_LOST_SECONDS"
    """At the end, an agent stops waiting for a member after this many seconds without an answer."""
    TEARDOWN_SECONDS = "DRUMLINE_TEARDOWN_SECONDS"
    """Time in which a rank must exit once it has reported that it is done."""
    QUIESCE_SECONDS = "DRUMLINE_QUIESCE_SECONDS"
    """Time in which an interrupted rank must leave its collectives, or two of its steps if these
    take longer. A tenth of a second is usual if cores are free. A late rank is killed."""
    EARLY_EXIT_SECONDS = "DRUMLINE_EARLY_EXIT_SECONDS"
    """Time for which the ranks of a command may run once another has ended with exit code 0."""
    STEPLESS_SECONDS = "DRUMLINE_STEPLESS_SECONDS"
    """After the start of ranks of which none shows a step, their standbys are started."""
    RANK_MODULE = "DRUMLINE_RANK_MODULE"
    """Module with `run_rank`, `serve_store` and `exit_code_of`, for another trainer."""
    SNAPSHOT_FOLDER = "DRUMLINE_SNAPSHOT_FOLDER"
    """Memory for the ranks' snapshots and for copies of a peer's; by default in /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's view of its pod."""

    namespace: str
    job: str
    job_uid: str
    pod_uid: str
    pod_ip: str
    index: int
    generation: int
    """Generation this pod was created for: records below it are refused."""
    checkpoint_folder: Path | None
    checkpoint_bucket: str | None
    """Place of checkpoints without a folder. With neither, nothing is saved."""
    token: bytes
    address: str
    port: int
    store_port: int
    store_is_open: bool
    gang_folder: Path
    termination_log: Path
    grace_seconds: float
    peer_lost_seconds: float
    teardown_seconds: float
    rank_module: str
    snapshot_folder: Path
    launch: LaunchSettings | None = None
    """Start settings of a template's command. None in a pod of the bundled trainer."""
    gpus: int = 1
    """Number of GPUs of the pod. Used only with `launch`."""
    early_exit_seconds: float = 900.0
    quiesce_seconds: float = 5.0
    stepless_seconds: float = 15.0

    @property
    def has_checkpoints(self) -> bool:
        """True if ranks of the bundled trainer save to storage."""
        return self.checkpoint_folder is not None or self.checkpoint_bucket is not None

    @property
    def ranks_per_process(self) -> int:
        """Number of ranks for each process that this agent starts. A launcher has one per GPU."""
        per_pod = self.launch is not None and self.launch.launch is Launch.PER_POD
        return max(self.gpus, 1) if per_pod else 1

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AgentSettings:
        """Read and check the environment.

        Raises:
            SettingsError: a variable is missing or malformed, or the token cannot be read.
        """
        pod_ip = _text(environ, Env.POD_IP)
        folder, bucket = _checkpoints(environ.get(Env.CHECKPOINT_FOLDER, ""))
        # The pod's address family decides: a cluster may have one of the two only.
        everywhere = "::" if ":" in pod_ip else "0.0.0.0"
        # First the identity of the pod, then its addresses and folders, then time limits.
        return cls(
            namespace=_text(environ, Env.NAMESPACE),
            job=_text(environ, Env.JOB),
            job_uid=_text(environ, Env.JOB_UID),
            pod_uid=_text(environ, Env.POD_UID),
            pod_ip=pod_ip,
            index=_integer(environ, Env.INDEX),
            generation=_integer(environ, Env.GENERATION, low=1),
            checkpoint_folder=folder,
            checkpoint_bucket=bucket,
            token=_token(Path(environ.get(AgentEnv.TOKEN_FILE, TOKEN_FILE))),
            address=environ.get(AgentEnv.ADDRESS, everywhere),
            port=_integer(environ, AgentEnv.PORT, default=AGENT_PORT, low=1),
            store_port=_integer(environ, AgentEnv.STORE_PORT, default=STORE_PORT, low=1),
            store_is_open=bool(environ.get(AgentEnv.STORE_IS_OPEN)),
            gang_folder=Path(environ.get(AgentEnv.GANG_FOLDER, GANG_FOLDER)),
            termination_log=Path(environ.get(AgentEnv.TERMINATION_LOG, "/dev/termination-log")),
            grace_seconds=_integer(environ, Env.GRACE_SECONDS, default=30, low=1),
            peer_lost_seconds=_integer(environ, AgentEnv.PEER_LOST_SECONDS, default=30, low=1),
            teardown_seconds=_integer(environ, AgentEnv.TEARDOWN_SECONDS, default=30, low=1),
            rank_module=environ.get(AgentEnv.RANK_MODULE, "drumline_trainer.rank"),
            snapshot_folder=Path(
                environ.get(AgentEnv.SNAPSHOT_FOLDER)
                or f"{SNAPSHOT_ROOT}/{_text(environ, Env.POD_UID)}"
            ),
            launch=_launch(environ),
            gpus=_integer(environ, Env.GPUS_PER_NODE, default=1),
            early_exit_seconds=_integer(environ, AgentEnv.EARLY_EXIT_SECONDS, default=900, low=1),
            quiesce_seconds=_integer(environ, AgentEnv.QUIESCE_SECONDS, default=5, low=1),
            stepless_seconds=_integer(environ, AgentEnv.STEPLESS_SECONDS, default=15, low=1),
        )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise AgentSettingsError(f"{name}: must be set")
    return value


def _integer(
    environ: Mapping[str, str],
    name: str,
    *,
    default: int | None = None,
    low: int = 0,
    high: int = 1 << 53,
) -> int:
    if default is not None and not environ.get(name):
        return default
    text = _text(environ, name)
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise AgentSettingsError(f"{name}: must be an integer in {low}..{high}, not {text!r}")
    return int(text)


def _checkpoints(text: str) -> tuple[Path | None, str | None]:
    """Return the folder or the bucket. Both are None if the variable is empty.

    Raises:
        AgentSettingsError: the text is not a valid place.
    """
    try:
        place = checkpoint_place(text) if text else None
    except ValueError as error:
        raise AgentSettingsError(f"{Env.CHECKPOINT_FOLDER}: {error}") from None
    return (None, place) if isinstance(place, str) else (place, None)


def _launch(environ: Mapping[str, str]) -> LaunchSettings | None:
    text = environ.get(Env.LAUNCH, "")
    try:
        return LaunchSettings.parse(text) if text else None
    except ContractError as error:
        raise AgentSettingsError(f"{Env.LAUNCH}: {error}") from None


def _token(path: Path) -> bytes:
    try:
        token = path.read_bytes()
    except OSError as error:
        raise AgentSettingsError(f"token file: {error}") from None
    if not token:
        raise AgentSettingsError(f"token file: {path} is empty")
    return token
