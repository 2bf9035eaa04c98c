"""Runs `drumline ui`: serves the page until Ctrl-C.

A browser gets the address by a file that only its user can read, as Jupyter does. All users of a
machine can read the arguments of a process.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.commands import Output
from drumline_cli.decide.cycle import read_policy
from drumline_cli.errors import BadInput
from drumline_cli.overview_arguments import ARCHIVE_VARIABLE
from drumline_console.ui.archive_source import Archive
from drumline_console.ui.cluster_source import Caller, LiveCluster, SharedLimits
from drumline_console.ui.questions import Questions
from drumline_console.ui.server import new_secret, serve

_REDIRECT: Final = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={address}">
<title>Drumline</title>
<a href="{address}">Drumline</a>
"""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Serve until the user stops it.

    Raises:
        BadInput: the kubeconfig or the policy is invalid, or the port is taken.
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
        with _browser(address) if opens else nullcontext():
            await asyncio.Event().wait()


@contextmanager
def _browser(address: str) -> Generator[None]:
    """Open the address in a browser without an argument that has the secret.

    A browser in the foreground (lynx, some values of BROWSER) returns when its user ends it: it
    has a thread of its own, which does not hold up the end of this process.
    """
    with tempfile.TemporaryDirectory(prefix="drumline-ui-") as folder:
        page = Path(folder) / "open.html"
        page.touch(mode=0o600)
        page.write_text(_REDIRECT.format(address=address), encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
