"""Define what the agent of a template's pod does besides starting the command."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule
from drumline_contract import MAX_PATTERN_CHARS, MAX_PATTERNS


class EndNoticeDelivery(ApiModel):
    """Delivery of the notice that the pods will be deleted to the command's processes.

    After a preemption, a drain, or a node's announcement of its end, they have
    terminationGracePeriodSeconds to save.
    """

    signal: Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "None"] = "SIGTERM"
    """Signal that each process gets. None: no signal, so `file` is required. Default: SIGTERM."""
    file: (
        Annotated[str, Field(max_length=512, pattern=r"^/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]$")]
        | None
    ) = None
    """Absolute path of a file that is created with the notice, and removed before the processes are
    started again. Its folder must be in the container and writable by its user. The file contains
    the end of the grace period: {"deadline": seconds since 1970}."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.signal != 'None' || has(self.file)",
            message="signal: None needs file, because the processes would not be notified"
            " otherwise; add file, or choose a signal",
            field_path=".signal",
        ),
    )


class EventFiles(ApiModel):
    """TensorBoard event files that the program writes."""

    folder: Annotated[str, Field(max_length=512, pattern=r"^/[^\x00-\x1f\x7f]*$")]
    """Absolute path in the container. The pod with the lowest index reads the newest event file in
    or below this folder."""
    loss_tag: (
        Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")] | None
    ) = None
    """Tag of the scalar that is the loss. Its step is the job's step. Unset: the tags of well-known
    libraries."""


class ProgressSource(ApiModel):
    """Source of step, loss and tokens per second, for a command that does not use the client."""

    patterns: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]] | None,
        Field(min_length=1, max_length=MAX_PATTERNS),
    ] = None
    """Regular expressions for the lines that the command prints, instead of the well-known formats.
    Named groups contain the figures: (?P<step>...), (?P<totalSteps>...), (?P<loss>...) and
    (?P<tokensPerSecond>...). tokensPerSecond is the sum over all ranks. The first expression that
    matches a line is used. Figures that a line does not contain stay unchanged. The syntax is RE2
    without flags: literals, classes, groups, | and repeats. A repeated part must not match the
    empty string."""
    tensor_board: EventFiles | None = None
    """Read step and loss every few seconds from the program's TensorBoard files, in addition to its
    output."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.patterns)"
            " || self.patterns.exists(pattern, pattern.contains('(?P<step>'))",
            message="patterns: at least one pattern needs a group (?P<step>...), because"
            " progress requires a step; for example step (?P<step>[0-9]+)",
            field_path=".patterns",
        ),
    )
