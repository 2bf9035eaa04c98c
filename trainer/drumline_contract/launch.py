"""Settings for the agent that starts a template's command, passed from the operator to the pod."""

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
"""Folder of the agent's own Python in such a pod. Its ELF files refer to each other by this path.
"""
CLIENT_FOLDER: Final = f"{BUNDLE_FOLDER}/client"
"""With `drumline_client`, for the user's own Python: last in its PYTHONPATH."""
BUNDLE_SOURCE: Final = "/opt/drumline-agent"
"""Folder of the bundle in the agent's image. An init container copies it from there."""
BUNDLE_TARGET: Final = "/opt/drumline-bundle"
"""Mount path of the bundle's volume in the init container, whose image already uses BUNDLE_FOLDER.
"""


class Launch(StrEnum):
    """Number of times that a pod starts the user's command."""

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
    """Settings of the template beside its command, which the agent gets as arguments."""

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
    """TensorBoard tag of the loss in the event files. Empty: well-known tags."""
    preload: tuple[str, ...] = ()
    """Modules that each standby process imports in advance. Empty: no standbys are started."""

    def encode(self) -> str:
        """Return JSON for the variable `Env.LAUNCH`."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> LaunchSettings:
        """Read `encode`'s text.

        Raises:
            ContractError: too large, not JSON, a field missing or of the wrong type.
        """
        raw = read.json_object(text.encode(), MAX_LAUNCH_BYTES)
        preload = read.exact_texts(raw, "preload", most=MAX_PRELOADS)
        # Only names: the list becomes an import in the standby process.
        if not all(map(is_module_name, preload)):
            raise read.ContractError("preload: must be names of Python modules")
        return cls(
            launch=read.choice(raw, "launch", Launch),
            notice_signal=(
                read.choice(raw, "notice_signal", NoticeSignal)
                # Older operators do not set the fields that are looked up with `in`.
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
