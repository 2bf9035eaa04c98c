"""The program: `python -m drumline` runs the operator, `drumline report JOB` is a CLI command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

OPERATOR = "operator"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `operator`, or any other command line as a command of `cli`; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == [OPERATOR]:
        return run_operator()
    from drumline.cli.program import main as command  # noqa: PLC0415 - the operator needs no CLI

    return command(given)


def run_operator() -> int:
    """Run the operator until it is asked to stop; returns the exit status."""
    # A CLI command starts without these imports: about 3 s of processor time, most of it Kopf,
    # aiohttp and pydantic. The settings come first, so that a wrong one is reported at once.
    from drumline.settings import SettingsError, from_environment  # noqa: PLC0415 - see above

    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        return 2
    from drumline.controller.app import kopf_process  # noqa: PLC0415 - see above
    from drumline.controller.app.operator import Operator  # noqa: PLC0415 - see above
    from drumline.kube.credentials import discover  # noqa: PLC0415 - see above
    from drumline.telemetry import logs  # noqa: PLC0415 - see above

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    kopf_process.run(
        Operator(settings, credentials=discover(os.environ)),
        credentials=lambda: discover(os.environ),
        identity=settings.identity,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [OPERATOR]))
