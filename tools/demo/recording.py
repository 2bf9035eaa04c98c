"""Record `make demo` and draw the recording as an animated SVG for the README.

`python -m tools.demo.recording` runs the demo on a terminal of its own and writes
docs/images/demo.cast (asciicast v2) and docs/images/demo.svg. `--draw` only draws the SVG again.
The SVG needs no script: a viewer without animation shows the last screen.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"
CAST = IMAGES / "demo.cast"
PICTURE = IMAGES / "demo.svg"
COLUMNS, ROWS = 110, 26
LINE_PIXELS, MARGIN, WIDTH = 17, 14, 880
LONGEST_PAUSE_SECONDS = 0.8
"""A longer silence is shortened to this, as asciinema's idle_time_limit does."""
LAST_SCREEN_SECONDS = 6.0
_LIVE = re.compile(r"\r\x1b\[K(?:\x1b\[2m.*?\x1b\[0m)?")
"""The repainted line of the demo, which the picture leaves out."""
_BOLD = re.compile(r"^\x1b\[1m(.*)\x1b\[0m$")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the recording.

    Attributes:
        seconds: when it appears, after pauses are shortened.
        text: without control characters.
    """

    seconds: float
    text: str
    bold: bool = False


def record(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command on a terminal.

    Returns:
        Its exit code, and the lines of an asciicast v2 file.
    """
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "make demo"}
    lines = [json.dumps(header)]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm"}
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        text = data.decode(errors="replace").replace(str(Path.home()), "~")
        lines.append(json.dumps([round(time.monotonic() - started, 3), "o", text]))
    return process.wait(), lines


def screen_lines(cast: Iterable[str]) -> list[Line]:
    """Return the lines that a recording leaves on the screen, each with its time."""
    _header, *events = (json.loads(line) for line in cast if line.strip())
    seconds = previous = 0.0
    pending, results = "", list[Line]()
    for at, kind, data in events:
        seconds += min(at - previous, LONGEST_PAUSE_SECONDS)
        previous = at
        pending += data if kind == "o" else ""
        *complete, pending = pending.split("\n")
        for raw in complete:
            shown = _LIVE.sub("", raw).rstrip("\r")
            bold = _BOLD.match(shown)
            text = bold[1] if bold else shown
            # a terminal continues a long line in its next row
            rows = [text[at : at + COLUMNS] for at in range(0, len(text), COLUMNS)] or [""]
            results += (Line(seconds=seconds, text=row, bold=bool(bold)) for row in rows)
    return results


def svg(lines: Sequence[Line]) -> str:
    """Draw lines that appear one after the other and scroll, repeated without end."""
    total = lines[-1].seconds + LAST_SCREEN_SECONDS
    height = ROWS * LINE_PIXELS + 2 * MARGIN
    last_offset = -max(0, len(lines) - ROWS) * LINE_PIXELS
    timing = f'calcMode="discrete" dur="{total:.2f}s" repeatCount="indefinite"'
    # the window moves up by one line for each line beyond the last row
    moves = [(0.0, 0)]
    for number, line in enumerate(lines[ROWS:], start=1):
        moves.append((line.seconds / total, -number * LINE_PIXELS))
    times = ";".join(f"{at:.4f}" for at, _ in moves)
    offsets = ";".join(f"0 {offset}" for _, offset in moves)
    inner = f'width="{WIDTH - 2 * MARGIN}" height="{height - 2 * MARGIN}"'
    font = 'font-size="13" font-family="ui-monospace,Menlo,Consolas,monospace"'
    scroll = f'type="translate" values="{offsets}" keyTimes="{times}" {timing}'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>make demo: two jobs train on a cluster of this machine</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#17202a"/>',
        f'<svg x="{MARGIN}" y="{MARGIN}" {inner}>',
        f'<g fill="#dfe6ec" {font} transform="translate(0 {last_offset})">',
        f'<animateTransform attributeName="transform" {scroll}/>',
    ]
    for number, line in enumerate(lines):
        if not line.text:
            continue
        weight = ' font-weight="bold"' if line.bold else ""
        share = line.seconds / total
        appears = f'<animate attributeName="opacity" values="0;1" keyTimes="0;{share:.4f}"'
        parts.append(
            f'<text y="{(number + 1) * LINE_PIXELS - 4}" xml:space="preserve"{weight}>'
            f"{html.escape(line.text, quote=False)}{appears} {timing}/></text>"
        )
    return "\n".join([*parts, "</g></svg></svg>", ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Record the demo unless told to draw only, then draw."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo.recording", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="draw the stored recording again")
    parser.add_argument("--name", default="drumline", help="the cluster (default: drumline)")
    arguments = parser.parse_args(argv)
    if not arguments.draw:
        code, cast = record([sys.executable, "-m", "tools.demo", "--name", arguments.name])
        if code:
            print("".join(json.loads(line)[2] for line in cast[1:]), file=sys.stderr)
            return code
        CAST.write_text("\n".join(cast) + "\n")
    PICTURE.write_text(svg(screen_lines(CAST.read_text().splitlines())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
