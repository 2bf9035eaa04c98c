"""`make test-all WHAT=monitoring`: Drumline under faults, watched by a real Prometheus.

Real operator, notifier, archiver, agents and ranks, on fake nodes of a real API server. Afterwards
every panel of the boards and every alert is asked of what Prometheus has; `--record` writes a slice
of it for the test of every day. `--soak MINUTES` injects nothing: no alert may fire.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.request import urlopen

from tests.monitoring import evidence, recording
from tests.monitoring.absent import PANELS
from tests.monitoring.evidence import Window
from tests.monitoring.faults import EXPECTED, FAULTS, calm
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.stage import NAMESPACE, RULES, Stage, staged
from tools.cluster.promtool import ensure_promtool
from tools.monitoring import generate

HURRY = 60
SOAK_LOOK_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/monitoring"))
    parser.add_argument("--record", action="store_true", help="write the slice for every day")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="watch without faults")
    options = parser.parse_args(arguments)
    folder: Path = (options.folder / time.strftime("%Y%m%d-%H%M%S")).resolve()
    folder.mkdir(parents=True)
    return (
        _soak(folder, minutes=options.soak)
        if options.soak is not None
        else _play(folder, record=options.record)
    )


def _play(folder: Path, *, record: bool) -> int:
    rules = folder / "rules.yaml"
    rules.write_text(evidence.hurried(RULES.read_text(), by=HURRY))
    with staged(folder, rules=rules) as stage:
        start = time.time()
        calm(stage)
        time.sleep(30)  # rates of a time without faults
        problems = list(_promtool_says(stage.prometheus))
        for fault, seconds in FAULTS:
            print(f"[{time.time() - start:5.0f} s] {fault.__name__}", flush=True)
            fault(stage)
            time.sleep(seconds)
        window = Window(start=start, end=time.time())
        problems += _judge(stage.prometheus, window)
        if record:
            size = recording.write(stage.prometheus, window, work=folder)
            print(f"{recording.FILE}: {size // 1000} kB")
    return _report(problems)


def _soak(folder: Path, *, minutes: float) -> int:
    """The rules as they are shipped, over jobs that train."""
    with staged(folder) as stage:
        calm(stage)
        start = time.time()
        end = start + minutes * 60
        while time.time() < end:
            time.sleep(min(SOAK_LOOK_SECONDS, max(0.0, end - time.time())))
            if problems := _lost(stage):
                return _report(problems)
        window = Window(start=start, end=time.time(), step=15)
        fired = _alerts(stage.prometheus, window, state="firing")
        pending = _alerts(stage.prometheus, window, state="pending") - fired
    known = {alert.name for group in generate.GROUPS for alert in group.alerts}
    print(f"{(window.end - window.start) / 60:.0f} minutes, {len(known)} alerts")
    print(f"fired: {sorted(fired)}; pending for a while, and not fired: {sorted(pending)}")
    return _report([f"{name} fired" for name in sorted(fired)])


def _lost(stage: Stage) -> list[str]:
    down = [
        f"{target['labels']}: {target['lastError']}"
        for target in stage.prometheus.targets()
        if target["health"] == "down"
    ]
    return [f"not scraped: {each}" for each in down]


def _judge(prometheus: Prometheus, window: Window) -> Iterable[str]:
    questions = list(evidence.panel_questions(namespace=NAMESPACE, job="train"))
    empty = set(evidence.unanswered(prometheus, iter(questions), window=window))
    for place in sorted(empty - PANELS.keys()):
        yield f"no data: {place}"
    for place in sorted(PANELS.keys() - empty):
        print(f"has data this time, unlike in the recording (tests/monitoring/absent.py): {place}")
    fired = _alerts(prometheus, window, state="firing")
    for name in sorted(EXPECTED - fired):
        yield f"did not fire: {name}"
    alerts = {alert.name for group in generate.GROUPS for alert in group.alerts}
    print(f"{len(questions)} queries of panels, {len(questions) - len(empty)} with data")
    print(f"{len(alerts)} alerts, fired by faults: {len(fired)}: {', '.join(sorted(fired))}")


def _alerts(prometheus: Prometheus, window: Window, *, state: str) -> set[str]:
    series = prometheus.range(
        f'ALERTS{{alertstate=~"{state}"}}', start=window.start, end=window.end, step=window.step
    )
    return {each.labels["alertname"] for each in series}


def _promtool_says(prometheus: Prometheus) -> Iterable[str]:
    """What it has against the pages that are really scraped."""
    promtool = ensure_promtool()
    assert promtool is not None
    for target in prometheus.targets():
        with urlopen(target["scrapeUrl"]) as page:  # noqa: S310 - on loopback
            text = page.read()
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, check=False
        )
        if done.returncode:
            yield f"{target['labels']}: {(done.stdout + done.stderr).decode()}"


def _report(problems: Iterable[str]) -> int:
    lines = list(problems)
    for line in lines:
        print(line, file=sys.stderr)
    print("monitoring:", "passed" if not lines else f"{len(lines)} problems")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
