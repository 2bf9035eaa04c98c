"""The program: `python -m drumline` runs the operator, `drumline report JOB` a command.

`python -m drumline archiver`, `notifier` and `page` run the other processes of the cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

# a command of `cli` needs no settings
if TYPE_CHECKING:
    from drumline.settings import Settings

OPERATOR: Final = "operator"
PROCESSES: Final[Mapping[str, str]] = {
    OPERATOR: "drumline.app.process",
    "archiver": "drumline_addons.archive.process",
    "notifier": "drumline_addons.notifications.process",
    "page": "drumline_console.ui.in_cluster",
}
"""Name -> module, whose `main(settings)` returns the problem that ended it, or None."""
COMMANDS: Final = "drumline_cli.program"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a process of the cluster or a command; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) == 1 and given[0] in PROCESSES:
        return _run_process(PROCESSES[given[0]])
    command: Callable[[Sequence[str]], int] = import_module(COMMANDS).main
    return command(given)


def _run_process(module: str) -> int:
    # A command starts without these imports: about 3 s of processor time, most of it Kopf,
    # aiohttp and pydantic. The settings come first, so that a wrong one is reported at once.
    from drumline.settings import SettingsError, from_environment  # noqa: PLC0415 - see above

    try:
        settings = from_environment(os.environ)
        from drumline.kube.credentials import NoCredentials  # noqa: PLC0415 - see above
        from drumline.telemetry import logs  # noqa: PLC0415 - see above

        run: Callable[[Settings], str | None] = import_module(module).main
        logs.configure(level=settings.log_level, log_format=settings.log_format)
        try:
            problem = run(settings)
        # Somebody starts the process outside of a cluster, or without its service account.
        except NoCredentials as error:
            problem = f"no way to the API server: {error}"
    except SettingsError as error:
        problem, status = str(error), 2
    else:
        status = 0 if problem is None else 1
    if problem is not None:
        print(f"drumline: {problem}", file=sys.stderr)  # noqa: T201 - the process ends with it
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [OPERATOR]))
