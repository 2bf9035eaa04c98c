"""The alerts and boards as a monitoring mixin, for sites that build their monitoring by jsonnet.

The archive has what mixins have (https://monitoring.mixins.dev): `mixin.libsonnet` with
`grafanaDashboards` and `prometheusAlerts`, and the same rendered for everybody else. The same
values give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from tools.monitoring.generate import ALERTS, BOARD_FOLDER, generated

FOLDER: Final = "drumline-mixin"
ARCHIVE: Final = Path("build/drumline-mixin.tar.gz")


def files() -> Mapping[str, str]:
    """What each file of the mixin holds, by its path in it."""
    texts = generated()
    boards = {
        path.rpartition("/")[2]: text
        for path, text in texts.items()
        if path.startswith(BOARD_FOLDER)
    }
    alerts = texts[ALERTS]
    imports = "".join(
        f"    'drumline-{name}': import 'dashboards/{name}',\n" for name in sorted(boards)
    )
    library = (
        "{\n"
        f"  grafanaDashboards+:: {{\n{imports}  }},\n"
        "  prometheusAlerts+:: import 'alerts/alerts.json',\n"
        "}\n"
    )
    return {
        "mixin.libsonnet": library,
        "alerts/alerts.json": json.dumps(yaml.safe_load(alerts), indent=1) + "\n",
        "prometheus_alerts.yaml": alerts,
        **{f"dashboards/{name}": text for name, text in boards.items()},
    }


def archive() -> bytes:
    """The mixin as a compressed tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in sorted(files().items()):
            body = text.encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return gzip.compress(buffer.getvalue(), mtime=0)


def main(arguments: list[str] | None = None) -> int:
    """Write the archive; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.monitoring.mixin", description=__doc__)
    parser.add_argument("--output", type=Path, default=ARCHIVE)
    output: Path = parser.parse_args(arguments).output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(archive())
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
