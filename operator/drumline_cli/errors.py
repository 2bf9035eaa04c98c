"""Everything a command can refuse, as one tree; each is one sentence for people and an exit code.

::

    CommandError
    ├── BadInput      2   the arguments, a file or the kubeconfig are not usable: nothing was asked
    ├── OutputLost    1   standard output cannot be written: the disk of a file is full
    ├── Busy          1   too much is asked at once: the cluster was not asked
    └── NotAnswered   1   the cluster was asked, and did not give what was asked for
        ├── NotLoggedIn      as it does not accept the credentials
        └── NotAnsweredYet   and may give it a moment later
"""

from __future__ import annotations

from typing import ClassVar

from drumline_cli.exit_codes import CommandExit


class CommandError(Exception):
    """A command ends here; `str()` is the sentence."""

    exit_code: ClassVar[int] = CommandExit.NOT_DONE


class BadInput(CommandError):  # noqa: N818 - read as a sentence: raise BadInput
    """The arguments, a file or the kubeconfig are not usable."""

    exit_code: ClassVar[int] = CommandExit.BAD_INPUT


class OutputLost(CommandError):  # noqa: N818 - as above
    """Standard output cannot be written, and not because its reader has gone."""


class Busy(CommandError):  # noqa: N818 - as above
    """This process has too many requests at once. A retry may succeed a moment later."""


class NotAnswered(CommandError):  # noqa: N818 - as above
    """The cluster does not have it, does not allow it, or does not answer."""


class NotLoggedIn(NotAnswered):
    """The cluster does not accept these credentials, or none were given."""


class NotAnsweredYet(NotAnswered):
    """The cluster did not answer, or was too busy to; it may a moment later."""


def install_extra(extra: str) -> str:
    """Return how to install the packages of an extra."""
    return (
        f"Run in a checkout: pipx install --force '.[{extra}]' or uv tool install --force"
        f" '.[{extra}]'"
    )
