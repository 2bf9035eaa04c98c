"""The program: `python -m drumline` runs the operator, `drumline report JOB` is a CLI command.

`python -m drumline archiver` runs the archiver, `python -m drumline notifier` the notifier,
`python -m drumline page` the page in the cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

# a command of `cli` needs no settings
if TYPE_CHECKING:
    from drumline.settings import Settings

OPERATOR = "operator"
ARCHIVER = "archiver"
NOTIFIER = "notifier"
PAGE = "page"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a process of the cluster or a command of `cli`; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == [OPERATOR]:
        return run_operator()
    if given == [ARCHIVER]:
        return run_archiver()
    if given == [NOTIFIER]:
        return run_notifier()
    if given == [PAGE]:
        return run_page()
    from drumline.cli.program import main as command  # noqa: PLC0415 - the operator needs no CLI

    return command(given)


def run_operator() -> int:
    """Run the operator until it is asked to stop; returns the exit status."""
    # A CLI command starts without these imports: about 3 s of processor time, most of it Kopf,
    # aiohttp and pydantic. The settings come first, so that a wrong one is reported at once.
    settings = _settings()
    from drumline.controller.app import kopf_process  # noqa: PLC0415 - see above
    from drumline.controller.app.operator import Operator  # noqa: PLC0415 - see above
    from drumline.kube.credentials import discover  # noqa: PLC0415 - see above
    from drumline.telemetry import logs  # noqa: PLC0415 - see above

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    kopf_process.run(
        Operator(settings, credentials=discover(os.environ)),
        credentials=lambda: discover(os.environ),
        identity=settings.identity,
        installation=settings.installation,
    )
    return 0


def run_archiver() -> int:
    """Run the archiver until it is asked to stop; returns the exit status."""
    settings = _settings()
    if not settings.archive:
        problem = "DRUMLINE_ARCHIVE is not set: it is the URL of the archive"
        print(f"drumline: {problem}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        return 2
    import asyncio  # noqa: PLC0415 - as above

    from drumline.archive import process  # noqa: PLC0415 - as above
    from drumline.archive.store import ArchiveError  # noqa: PLC0415 - as above
    from drumline.kube.credentials import discover  # noqa: PLC0415 - as above
    from drumline.telemetry import logs  # noqa: PLC0415 - as above

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    try:
        asyncio.run(process.run(settings, credentials=discover(os.environ)))
    except ArchiveError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - the process ends with it
        return 1
    return 0


def run_notifier() -> int:
    """Run the notifier until it is asked to stop; returns the exit status."""
    from drumline.notifications import process  # noqa: PLC0415 - as above
    from drumline.notifications.channels import ConfigurationError  # noqa: PLC0415 - as above

    settings = _settings()
    try:
        configuration = process.read_configuration(settings.notifications)
    except ConfigurationError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        return 2
    import asyncio  # noqa: PLC0415 - as above

    from drumline.kube.credentials import discover  # noqa: PLC0415 - as above
    from drumline.telemetry import logs  # noqa: PLC0415 - as above

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    problem = asyncio.run(
        process.run(settings, configuration=configuration, credentials=discover(os.environ))
    )
    if problem is not None:
        print(f"drumline: {problem}", file=sys.stderr)  # noqa: T201 - the process ends with it
        return 1
    return 0


def run_page() -> int:
    """Run the page in the cluster until it is asked to stop; returns the exit status."""
    import asyncio  # noqa: PLC0415 - as above

    from drumline.cli.ui import in_cluster  # noqa: PLC0415 - as above
    from drumline.telemetry import logs  # noqa: PLC0415 - as above

    settings = _settings()
    logs.configure(level=settings.log_level, log_format=settings.log_format)
    asyncio.run(in_cluster.run(settings))
    return 0


def _settings() -> Settings:
    """Those of the environment; a wrong one ends the process, with a sentence."""
    from drumline.settings import SettingsError, from_environment  # noqa: PLC0415 - as above

    try:
        return from_environment(os.environ)
    except SettingsError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        raise SystemExit(2) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [OPERATOR]))
