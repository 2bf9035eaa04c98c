"""Runs `drumline ui`: serves the page until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import webbrowser
from collections.abc import Mapping

from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.commands import Output
from drumline_cli.decide.cycle import read_policy
from drumline_cli.errors import BadInput
from drumline_cli.overview_arguments import ARCHIVE_VARIABLE
from drumline_console.ui.archive_source import Archive
from drumline_console.ui.cluster_source import Caller, LiveCluster, SharedLimits
from drumline_console.ui.questions import Questions
from drumline_console.ui.server import new_secret, serve


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Serve until somebody ends it.

    Raises:
        BadInput: no kubeconfig or policy is usable, or the port is taken.
    """
    credentials = chosen_credentials(chosen, environment)
    named = chosen.archive or environment.get(ARCHIVE_VARIABLE)
    archive = Archive(named, environment, clock=time.time) if named else None
    limits = SharedLimits(Questions(read_policy(chosen.policy)))
    live = LiveCluster(Caller(credentials=credentials), limits=limits)
    try:
        asyncio.run(_serve(live, archive, port=chosen.port, opens=not chosen.no_browser))
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise BadInput(f"--port {chosen.port}: {error.strerror}") from None
    return Output(text="")


async def _serve(live: LiveCluster, archive: Archive | None, *, port: int, opens: bool) -> None:
    async with serve(live, archive=archive, port=port, secret=new_secret()) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if opens:
            webbrowser.open(address)
        await asyncio.Event().wait()
