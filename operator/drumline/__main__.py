"""The program: `python -m drumline` runs the operator, `drumline report JOB` tells of a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

OPERATOR = "operator"


def main(arguments: Sequence[str] | None = None) -> int:
    """What a person typed; `operator` runs the operator, everything else is a command of `cli`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == [OPERATOR]:
        return run_operator()
    from drumline.cli.program import main as command  # noqa: PLC0415

    return command(given)


def run_operator() -> int:
    """Run the operator until it is asked to end."""
    import os  # noqa: PLC0415

    from drumline.settings import SettingsError, from_environment  # noqa: PLC0415

    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        return 2
    # Heavy imports wait until the settings are known to be good.
    import asyncio  # noqa: PLC0415

    import uvloop  # noqa: PLC0415

    from drumline.controller.app.operator import Operator  # noqa: PLC0415
    from drumline.telemetry import logs  # noqa: PLC0415

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Operator(settings).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [OPERATOR]))
