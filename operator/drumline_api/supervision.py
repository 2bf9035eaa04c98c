"""What the agent of a template's pod does beside starting the command."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule
from drumline_contract import MAX_PATTERN_CHARS, MAX_PATTERNS


class EndNoticeDelivery(ApiModel):
    """How the processes of the command learn that their pods are given up.

    After a preemption, a drain, or a node that announces its end, they have
    terminationGracePeriodSeconds to save.
    """

    signal: Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "None"] = "SIGTERM"
    """The signal that each process gets. None: none, `file` says it. Default: SIGTERM."""
    file: (
        Annotated[str, Field(max_length=512, pattern=r"^/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]$")]
        | None
    ) = None
    """Absolute path of a file that appears with the notice and is removed before the processes are
    started again. In a folder of the container that its user may write. It holds the end of the
    grace period: {"deadline": seconds since 1970}."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.signal != 'None' || has(self.file)",
            message="signal: None needs a file, else the processes would not learn of their end;"
            " add file, or choose a signal",
            field_path=".signal",
        ),
    )


class EventFiles(ApiModel):
    """TensorBoard's event files, which the program writes."""

    folder: Annotated[str, Field(max_length=512, pattern=r"^/[^\x00-\x1f\x7f]*$")]
    """Absolute path in the container. The newest event file in it or below it counts, as the pod of
    the lowest index sees it."""
    loss_tag: (
        Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")] | None
    ) = None
    """Tag of the scalar that is the loss; its step is the job's. Absent: the tags of well-known
    libraries."""


class ProgressSource(ApiModel):
    """Where step, loss and tokens per second of a command come from that uses no client."""

    patterns: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]] | None,
        Field(min_length=1, max_length=MAX_PATTERNS),
    ] = None
    """Regular expressions for the lines that the command prints, instead of the well-known formats.
    Named groups give the figures: (?P<step>...), (?P<totalSteps>...), (?P<loss>...) and
    (?P<tokensPerSecond>...), the latter of all ranks. The first that matches a line counts; what
    a line does not say stays as it was. Syntax of RE2 without flags: literals, classes, groups, |
    and repeats, which must not repeat what may match nothing."""
    tensor_board: EventFiles | None = None
    """Step and loss are read every few seconds from what the program writes for TensorBoard, beside
    what it prints."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.patterns)"
            " || self.patterns.exists(pattern, pattern.contains('(?P<step>'))",
            message="patterns: none of them has a group (?P<step>...), without which no progress is"
            " known; add it, such as step (?P<step>[0-9]+)",
            field_path=".patterns",
        ),
    )
