"""`drumline simulate` as people use it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from drumline_cli import program
from drumline_simulator.engine.simulation import SimulationProgress
from drumline_simulator.simulate import progress_bar
from drumline_simulator.simulate.progress_bar import ProgressBar
from tests.texts import missing

CLUSTER = """\
pools:
  - name: p
    nodes: [{count: 2, gpus: 8}]
queues:
  - {name: q, quota: {p: 16}, preemption: {withinQueue: LowerPriority}}
execution: {saveSeconds: 30, restartSeconds: 60}
"""
TRACE = """\
submit_seconds,gpus,duration_seconds,user,priority
0,8,600,ann,0
0,8,600,bob,0
60,16,600,ann,1
120,8,60,bob,0
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    cluster, trace = tmp_path / "cluster.yaml", tmp_path / "trace.csv"
    cluster.write_text(CLUSTER)
    trace.write_text(TRACE)
    return str(cluster), str(trace)


def test_a_table_compares_the_cluster_s_policy_with_plain_queues(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["simulate", *files]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert not missing(shown.out.splitlines()[0], "4 jobs", "trace.csv", "16 GPUs")
    names = [line.split("  ")[0] for line in shown.out.splitlines()[3:6]]
    assert names == ["drumline", "best-effort FIFO", "strict FIFO"]
    assert not missing(shown.out, "FIFO")


def test_json_has_the_figures_of_each_policy(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["simulate", *files, "-o", "json", "--alone"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["policies"]) == ["drumline"]
    figures = shown["policies"]["drumline"]
    assert (figures["jobs"], figures["preempted"], figures["never_started"]) == (4, 2, 0)
    assert figures["makespan_seconds"] == 90 + 600 + (60 + 540) + 60


@pytest.mark.extended(keep=1, of="simulated pictures")
def test_pictures_and_a_page_without_anything_foreign(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    assert program.main(["simulate", *files, "--pictures", str(folder)]) == 0
    capsys.readouterr()
    drawn = {path.name for path in folder.iterdir()}
    assert {"utilisation.png", "waits.png", "largest.png", "fairness.png"} <= drawn
    assert {"places-1.png", "places-3.png", "preemptions.png", "index.html"} <= drawn
    page = (folder / "index.html").read_text()
    assert not missing(page, "4 jobs", "trace.csv", "16 GPUs")
    assert page.count("data:image/svg+xml;base64,") == len(drawn) - 1
    assert 'src="http' not in page
    assert "<script" not in page


@pytest.mark.extended(keep=1, of="simulated pictures")
def test_where_nobody_is_preempted_there_is_no_picture_of_preemptions(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Path(files[0])
    cluster.write_text(cluster.read_text().replace("LowerPriority", "Never"))
    folder = tmp_path / "pictures"
    assert program.main(["simulate", *files, "--pictures", str(folder)]) == 0
    capsys.readouterr()
    drawn = {path.name for path in folder.iterdir()}
    assert "fairness.png" in drawn
    assert "preemptions.png" not in drawn


def test_a_made_up_trace_can_be_kept_and_used_again(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.csv"
    wish = ["simulate", files[0], "--alone", "--jobs", "20", "--seed", "5", "-o", "json"]
    assert program.main([*wish, "--save-trace", str(kept)]) == 0
    made_up = json.loads(capsys.readouterr().out)
    assert program.main(["simulate", files[0], str(kept), "--alone", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"] == made_up["policies"]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (["cluster.yaml", "count: 2", "count: two"], "cluster.yaml, line 3, field pools[0].nodes"),
        (["trace.csv", "0,8,600,bob", "0,8,long,bob"], "trace.csv, line 3, field duration_seco"),
        (["trace.csv", "60,16", "60,17"], ""),
        (["trace.csv", "gpus", "gpu"], "trace.csv, line 1, field gpus: this column is missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    files: tuple[str, str], change: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, old, new = change
    path = Path(files[0]).with_name(name)
    path.write_text(path.read_text().replace(old, new))
    assert program.main(["simulate", *files]) == (2 if shown else 0)
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--load", "0"], "--load must be above 0"),
        (["missing.csv"], "missing.csv: No such file"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said_in_a_sentence(
    files: tuple[str, str], arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["simulate", files[0], *arguments]) == 2
    assert shown in capsys.readouterr().err


def test_a_bar_says_how_far_it_is_and_cleans_up() -> None:
    tick = SimulationProgress(now=7200, submitted=30, ended=10, waiting=15, running=5, jobs=40)
    screen = StringIO()
    with ProgressBar(title="strict FIFO", screen=screen) as bar:
        bar(tick)
        bar(tick)
    shown = progress_bar.line(tick, title="strict FIFO")
    assert not missing(shown, "10 of 40 jobs", "5", "15", "2 h")
    assert shown.count("█") == 7
    assert screen.getvalue() == f"\r\033[K{shown}\r\033[K"


def test_the_week_compares_three_sides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    week = ["simulate", "--week", "--days", "0.3", "--nodes", "16"]
    assert program.main([*week, "--pictures", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert not missing(lines[0], "0.3 days", "128 GPUs", "1")
    names = [line.split("  ")[0] for line in lines[3:6]]
    assert names == ["Drumline", "Kueue, JobSet, torchrun", "the same at its best"]
    causes = lines[7 : lines.index("", 7)]
    assert causes[0].startswith("NOT USEFUL BECAUSE OF")
    assert any(line.startswith("first starts") for line in causes)
    assert [line.partition(":")[0] for line in lines[-2:]] == [
        "Drumline compared with Kueue, JobSet, torchrun",
        "Drumline compared with the same at its best",
    ]
    assert (tmp_path / "simulated-week.png").read_bytes().startswith(b"\x89PNG")


def test_the_week_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["simulate", "--week", "--days", "0.3", "--nodes", "16", "-o", "json"])
    sides = json.loads(capsys.readouterr().out)["sides"]
    account = sides["Drumline"]["account"]
    assert set(account) == {"useful", "lost", "idle", "saving", "restarting"}
    assert sides["Drumline"]["committed_tokens"] > 0
    assert 0 < sides["Drumline"]["occupancy"] <= 1
    assert sides["Drumline"]["not_useful"]["first starts"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a CLUSTER file, or --week without a file"),
        (["--week", "c.yaml"], "give a CLUSTER file, or --week without a file"),
        (["--week", "--days", "0"], "--days must be above 0"),
        (["--week", "--nodes", "4"], "--nodes must be 16 to"),
    ],
)
def test_the_week_needs_no_cluster_and_a_size_that_can_be(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
