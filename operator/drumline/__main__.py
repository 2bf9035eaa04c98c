"""`python -m drumline`: run the operator."""

from __future__ import annotations

import asyncio
import os
import sys

from drumline.settings import SettingsError, from_environment


def main() -> int:
    """Run the operator until it is asked to end."""
    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        print(f"drumline: {error}", file=sys.stderr)  # noqa: T201 - there is no logger yet
        return 2
    # Heavy imports wait until the settings are known to be good.
    import uvloop  # noqa: PLC0415

    from drumline.controller.app import Operator  # noqa: PLC0415
    from drumline.telemetry import logs  # noqa: PLC0415

    logs.configure(level=settings.log_level, log_format=settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Operator(settings).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
