"""What the agent of a template's pod does beside starting the command."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline.api.base import ApiModel, Rule


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
