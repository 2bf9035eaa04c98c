"""How the agent of a template's pod starts the user's command: from the operator to the pod."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from drumline_contract import json_fields as read
from drumline_contract.python_program import is_module_name

MAX_PATTERNS: Final = 8
MAX_PRELOADS: Final = 16
PROGRESS_GROUPS: Final = ("step", "totalSteps", "loss", "tokensPerSecond")
"""Names that groups of a pattern may have."""
MAX_LAUNCH_BYTES: Final = 32_768
BUNDLE_FOLDER: Final = "/opt/drumline"
"""Where the agent's own Python is in such a pod: the ELF files in it name each other by this
path."""
CLIENT_FOLDER: Final = f"{BUNDLE_FOLDER}/client"
"""With `drumline_client`, for the user's own Python: last in its PYTHONPATH."""
BUNDLE_SOURCE: Final = "/opt/drumline-agent"
"""The same folder in the agent's image, from where an init container copies it."""
BUNDLE_TARGET: Final = "/opt/drumline-bundle"
"""Where that container has the volume to which it copies: its own image has something else at
BUNDLE_FOLDER."""


class Launch(StrEnum):
    """Which processes of a pod are the user's command."""

    PER_GPU = "PerGpu"
    """One for each GPU of the pod, with the variables that torchrun gives its workers."""
    PER_POD = "PerPod"
    """One for the pod: a launcher such as torchrun, accelerate or mpirun, or a program that uses
    all GPUs itself."""


class NoticeSignal(StrEnum):
    """The signal by which the processes of a command learn that their pods are given up."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    SIGHUP = "SIGHUP"
    SIGUSR1 = "SIGUSR1"
    SIGUSR2 = "SIGUSR2"
    NONE = "None"
    """None at all: a file says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What the agent has to know of the template beside the command, which is its arguments."""

    launch: Launch
    notice_signal: NoticeSignal = NoticeSignal.SIGTERM
    notice_file: str = ""
    """Absolute path of a file that says the same; empty: there is none."""
    watches_activity: bool = False
    """Processes that report no steps hang where they neither print nor use a processor."""
    progress_patterns: tuple[str, ...] = ()
    """`LinePattern`s with the groups of PROGRESS_GROUPS; none: well-known formats."""
    events_folder: str = ""
    """Absolute path below which the program writes TensorBoard's event files; empty: none."""
    loss_tag: str = ""
    """Of the loss in these; empty: well-known ones."""
    preload: tuple[str, ...] = ()
    """Modules that a standby of each process has imported; none: there are no standbys."""

    def encode(self) -> str:
        """JSON, for the variable `Env.LAUNCH`."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> LaunchSettings:
        """Read `encode`'s text.

        Raises:
            ContractError: too large, not JSON, a field missing or of the wrong type.
        """
        raw = read.json_object(text.encode(), MAX_LAUNCH_BYTES)
        preload = read.exact_texts(raw, "preload", most=MAX_PRELOADS)
        if not all(map(is_module_name, preload)):
            raise read.ContractError("preload: must be names of Python modules")
        return cls(
            launch=read.choice(raw, "launch", Launch),
            notice_signal=(
                read.choice(raw, "notice_signal", NoticeSignal)
                if "notice_signal" in raw
                else NoticeSignal.SIGTERM
            ),
            notice_file=read.exact_text(raw, "notice_file"),
            watches_activity=(
                read.flag(raw, "watches_activity") if "watches_activity" in raw else False
            ),
            progress_patterns=read.exact_texts(raw, "progress_patterns", most=MAX_PATTERNS),
            events_folder=read.exact_text(raw, "events_folder"),
            loss_tag=read.exact_text(raw, "loss_tag"),
            preload=preload,
        )
