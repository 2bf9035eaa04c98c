"""All commands show the same expected start of a waiting job.

The commands are list, queue, why, share, top, the page and decide.

A seed makes a small cluster (`told_clusters`), and the real operator writes statuses. Each command
gets the same objects. The test compares its start of each waiting job with the status.
`drumline decide` computes the start again from objects without statuses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.lifecycle.model.timestamps import timestamp
from drumline.overview.jobs import CANNOT_START, job_rows, lines, positions
from drumline.telemetry.metrics import Metrics
from drumline_cli.arguments import parser
from drumline_cli.decide import command as decide_command
from drumline_cli.overview import command as overview_command
from drumline_cli.overview.read import from_documents
from drumline_cli.start_text import start_text
from drumline_console.top.screen import TopRows, render
from drumline_console.ui.pages import overview
from tests.property.scale import ALL, many
from tests.property.told_clusters import NOW, Json, ToldCluster, told_cluster, written
from tests.seeds import seed_of

CLUSTERS = many(12, 1000)


@pytest.mark.timeout(3600)
async def test_every_answer_about_a_start_is_the_same(tmp_path: Path) -> None:
    first = 0 if ALL else seed_of("TOLD_SEED") * CLUSTERS
    compared = dated = 0
    wrong: list[str] = []
    for seed in range(first, first + CLUSTERS):
        scene = told_cluster(seed)
        await written(scene, metrics=Metrics())
        answers = list(_answers(scene, folder=tmp_path))
        compared += len(answers)
        dated += sum(status not in (True, (None, None)) for _, _, status, _ in answers)
        wrong += [
            f"seed {seed}: {job}: {where} says {other}, its status {status}"
            for job, where, status, other in answers
            if status != other
        ]
    print(f"{CLUSTERS} clusters from seed {first}: {compared} answers, {dated} with a start")
    assert not wrong, "\n".join(wrong)
    assert 0 < dated < compared


def _answers(scene: ToldCluster, *, folder: Path) -> Iterator[tuple[str, str, object, object]]:
    """Yield each job, who was asked, the start in its status, and the answer."""
    file = folder / "all.json"
    shown = _asked("list", "-A", file=_file(file, scene.objects))
    queue = {row["name"]: row for each in _asked("queue", file=file) for row in each["waiting"]}
    fresh = _decided(_file(folder / "bare.json", _without_starts(scene.objects)))
    same = _decided(file)
    cluster = from_documents([file.read_bytes()], as_of=NOW)
    page = overview(cluster)
    rows = {row["name"]: row for row in shown}
    next_of = {row["nextJob"]: row for row in _asked("share", file=file) if row.get("nextJob")}
    screen = render(
        TopRows(
            as_of=NOW,
            jobs=job_rows(
                cluster.jobs, now=NOW, places=positions(lines(cluster.jobs, cluster.priorities))
            ),
            nodes=(),
            queues=(),
        ),
        width=400,
    )
    top = {line.split()[0]: line for line in screen if line.startswith("team/")}
    for job in scene.of("TrainingJob"):
        name, status = job["metadata"]["name"], job["status"]
        if status["phase"] != "Pending" or "reason" not in status:
            continue  # it starts in this cycle
        start = (status.get("expectedStart"), status.get("expectedStartBy"))
        if status["reason"] in CANNOT_START:
            assert start == (None, None), f"{name} cannot start"
        (card,) = _asked("why", name, "-n", "team", file=file)
        yield name, "list", start, _band(rows[name])
        yield name, "queue", start, _band(queue[name])
        yield name, "why", start, _band(card["job"])
        yield name, "decide", start, _band(same[f"team/{name}"])
        yield name, "decide, computed", start, _band(fresh[f"team/{name}"])
        words = start_text(*_seconds(rows[name]), now=NOW, reason=status["reason"])
        yield name, "page", True, words in page
        yield name, "top", True, f"starts {words}" in top[f"team/{name}"]
        if f"team/{name}" in next_of:
            share = next_of[f"team/{name}"]
            band = share.get("nextStart"), share.get("nextStartBy")
            yield name, "share", start, _texts(*band)


def _band(row: Json) -> tuple[str | None, str | None]:
    return _texts(*_seconds(row))


def _texts(early: float | None, late: float | None) -> tuple[str | None, str | None]:
    return (
        None if early is None else timestamp(early),
        None if late is None else timestamp(late),
    )


def _seconds(row: Json) -> tuple[float | None, float | None]:
    return row.get("expectedStart"), row.get("expectedStartBy")


def _without_starts(objects: list[Json]) -> list[Json]:
    copies: list[Json] = json.loads(json.dumps(objects))
    for each in copies:
        for name in ("expectedStart", "expectedStartBy"):
            each.get("status", {}).pop(name, None)
    return copies


def _file(file: Path, objects: list[Json]) -> Path:
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    os.utime(file, (NOW, NOW))
    return file


def _asked(*arguments: str, file: Path) -> list[Json]:
    chosen = parser("drumline").parse_args([*arguments, "-f", str(file), "-o", "json"])
    return json.loads(overview_command.run(chosen, {}).text)["rows"]


def _decided(file: Path) -> dict[str, Json]:
    chosen = parser("drumline").parse_args(["decide", "-f", str(file), "-o", "json"])
    verdicts = json.loads(decide_command.run(chosen, {}).text)["verdicts"]
    return {each["job"]: each for each in verdicts if each["verdict"] == "Waits"}
