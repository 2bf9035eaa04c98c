"""`drumline plan` as people use it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline_cli import program
from drumline_contract.config import MODEL_PRESETS, DataConfig, TrainerConfig
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import violations
from drumline_contract.shapes.hugging_face import to_theirs
from drumline_planner.correction import is_state
from drumline_planner.memory import rank_lines
from drumline_planner.setup import TrainingSetup
from tests.texts import Golden, missing

pytestmark = pytest.mark.extended(keep=4)

SMALL = ["--gpus", "8", "--batch", "32", "--sequence", "2048"]
JOB = """\
apiVersion: drumline.dev/v1alpha1
kind: TrainingJob
metadata: {name: llama}
spec:
  queue: research
  nodes: 2
  gpusPerNode: 8
  trainer:
    model: llama-8b
    precision: bf16
    sequenceLength: 8192
    globalBatchSize: 32
    parallelism: {dataParallel: ddp}
"""


def plan(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert program.main(["plan", *arguments]) == code
    shown = capsys.readouterr()
    return shown.err if code == 2 else shown.out


GOLDEN = {
    "sizes": (
        (
            "llama-8b --gpus 8..16 --batch 32 --sequence 2048 --tokens 1e12 --price 2.5"
            " --compare tensor=8,micro_batch=4,recompute=full --compare pipeline=3"
            " --compare data_parallel=ddp"
        ),
        slice(None),
    ),
    "small-batch": ("llama-8b --gpus 16 --batch 4 --sequence 2048", slice(4, 7)),
    "curve": ("llama-70b --gpus 8..32 --batch 64 --price 2", slice(4, 5)),
    "job-as-written": ("job.yaml", slice(2)),
    "too-slow": (
        "llama-8b --gpus 8..32 --batch 32 --sequence 2048 --tokens 1e14 --within 1",
        slice(2),
    ),
    "too-big": ("llama-405b --gpus 8 --batch 8", slice(4)),
}
"""Arguments, and the paragraphs that are compared."""
EXIT_CODES = {"too-slow": 1, "too-big": 1}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_of_a_plan(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    arguments, paragraphs = GOLDEN[name]
    shown = plan(capsys, *arguments.split(), code=EXIT_CODES.get(name, 0))
    golden(f"{name}.txt", "\n\n".join(shown.split("\n\n")[paragraphs]))


def test_json_says_what_to_write_into_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(plan(capsys, "llama-8b", *SMALL, "-o", "json", "--top", "2"))
    assert len(shown["layouts"]) == 2
    first = shown["layouts"][0]
    assert sum(line["bytes"] for line in first["bill"]) == pytest.approx(first["memory_bytes"])
    assert sum(first["parts_seconds"].values()) == pytest.approx(first["step_seconds"])
    raw: dict[str, Any] = {
        "parallelism": first["trainer"]["parallelism"],
        "memory": first["trainer"]["memory"],
        "global_batch_size": first["trainer"]["globalBatchSize"],
        "micro_batch_size": first["trainer"]["microBatchSize"],
        "precision": "bf16",
    }
    assert not violations(TrainerConfig.from_dict(raw), world_size=8)


def test_html_draws_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    page = plan(capsys, "llama-8b", *SMALL, "-o", "html", "--gpus", "8..16")
    titles = ("Memory by line", "Parts of a step", "Memory against time", "Speed by number of GPUs")
    assert all(f"<title>{title}</title>" in page for title in titles)
    assert "<script" not in page
    assert re.search(r"\n ?1   (FSDP|ZERO|HSDP|TP|PP)", page)  # as the point in the picture


def test_the_number_of_gpus_is_chosen_by_cost_time_and_deadline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["llama-8b", "--gpus", "8..32", "--batch", "32", "--sequence", "2048"]
    assert "on 32 x H100" in plan(capsys, *sizes, "--by", "time")
    cheap = json.loads(plan(capsys, *sizes, "--by", "cost", "-o", "json"))
    assert cheap["size"]["gpus"] == cheap["gpus"] == 8
    assert [point["gpus"] for point in cheap["curve"]] == [8, 16, 32]
    assert "--tokens" in plan(capsys, *sizes, "--within", "3", code=2)


def test_pictures_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    sizes = ["llama-8b", *SMALL, "--gpus", "8..16"]
    plan(capsys, *sizes, "--pictures", str(folder))
    names = {"memory.png", "step.png", "memory-against-time.png", "speed.png"}
    assert {file.name for file in folder.iterdir()} == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in folder.iterdir())
    taken = tmp_path / "file"
    taken.touch()
    assert f"{taken}: File exists" in plan(capsys, *sizes, "--pictures", str(taken), code=2)


def test_a_compared_layout_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--compare", "data_parallel=ddp", "--compare", "recompute=full"]
    shown = json.loads(plan(capsys, "llama-8b", *SMALL, *wishes, "-o", "json"))
    assert [each["fits"] for each in shown["compared"]] == [False, True]


def test_a_curve_is_drawn_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes are equally far apart, each with its tick; both axes have their unit."""
    page = plan(capsys, "llama-8b", *SMALL, "-o", "html", "--gpus", "8..32")
    picture = page.partition("<title>Speed by number of GPUs</title>")[2].partition("</svg>")[0]
    assert all(f">{text}</text>" in picture for text in ("8", "16", "32", "GPUs"))
    points = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
    assert points[1] - points[0] == pytest.approx(points[2] - points[1])
    assert ">tokens/s of a GPU</text>" in picture


def test_a_model_that_a_folder_describes_is_planned_like_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, described = tmp_path / "job.yaml", tmp_path / "config.json"
    file.write_text(JOB)
    known = plan(capsys, str(file))
    folder = "model: FromFolder\n    overrides: {model_from: /data/mistral}"
    file.write_text(JOB.replace("model: llama-8b", folder))
    assert not missing(plan(capsys, str(file), code=2), "/data/mistral", "config.json")
    assert plan(capsys, str(file), "--like", "llama-8b") == known
    described.write_text(json.dumps(to_theirs(MODEL_PRESETS["llama-8b"], dtype="bfloat16")))
    assert plan(capsys, str(file), "--like", str(described)) == known


POOL = """\
---
apiVersion: drumline.dev/v1alpha1
kind: GpuPool
metadata: {name: large}
spec:
  nodeSelector: {gpu: b200}
  hardware: {gpu: B200, networkGbps: 800}
"""


def test_the_pool_beside_a_job_says_what_its_gpus_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB + POOL)
    assert plan(capsys, str(file)).startswith(f"{file} on 16 x B200")
    assert plan(capsys, str(file), "--gpu", "H200").startswith(f"{file} on 16 x H200")
    file.write_text(JOB + POOL.replace("B200,", "B2000,"))
    refused = plan(capsys, str(file), code=2)
    assert not missing(refused, "job.yaml, line 20", "'B2000'", "B200")


def test_it_says_what_the_scheduler_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    racks = "rackGpus: 64, rackLevel: rack, domainGpus: 16, domainLevel: clique}"
    levels = "\n  topologyLevels: [{name: rack, nodeLabel: a/r}, {name: clique, nodeLabel: a/c}]"
    pool = POOL.rstrip().removesuffix("}") + f", {racks}{levels}\n"
    job = JOB.replace("{dataParallel: ddp}", "{pipeline: 4, tensor: 8, context: 2}")
    job = job.replace("nodes: 2", "nodes: 16").replace("32\n", "256\n    microBatchSize: 1\n")
    file.write_text(job + pool)
    asked = plan(capsys, str(file), "--top", "1")
    assert not missing(asked, "every 4 pods in one rack", "every 2 pods in one clique")
    shown = json.loads(plan(capsys, str(file), "--top", "1", "-o", "json"))
    assert shown["scheduler"]["slices"][0] == {"level": "rack", "nodes": 4, "required": False}
    elastic = job.replace("nodes: 16", "nodes: 16\n  minNodes: 4\n  checkpoint: {claimName: c}")
    file.write_text(elastic.replace("{pipeline: 4, tensor: 8, context: 2}", "{mode: Auto}") + POOL)
    assert "4, 8 or 16 pods" in plan(capsys, str(file), "--top", "1")


def test_times_are_corrected_by_what_the_pool_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    seconds: list[float] = []
    for percent in (100, 150):
        file.write_text(f"{JOB}{POOL}status: {{stepTimePercent: {percent}}}\n")
        shown = json.loads(plan(capsys, str(file), "-o", "json", "--top", "1"))
        seconds.append(shown["layouts"][0]["step_seconds"])
    assert seconds[1] == pytest.approx(1.5 * seconds[0], rel=0.01)
    assert "150 %" in plan(capsys, str(file), "--top", "1")


def test_each_part_is_corrected_by_what_the_pool_measured_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    seconds: list[dict[str, float]] = []
    parts = "status: {stepTimePercent: 90, stepParts: [{part: optimizer, percent: 300}]}"
    for status in ("", parts):
        file.write_text(f"{JOB}{POOL}{status}\n")
        asked = [str(file), "-o", "json", "--compare", "tensor=8,micro_batch=1,recompute=full"]
        shown = json.loads(plan(capsys, *asked))
        seconds.append(shown["compared"][0]["parts_seconds"])
    assert seconds[1]["optimizer"] == pytest.approx(3 * seconds[0]["optimizer"])
    assert seconds[1]["compute"] == pytest.approx(seconds[0]["compute"])
    assert "optimizer 300 %" in plan(capsys, str(file), "--top", "1")


def test_what_a_job_writes_beside_auto_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("{dataParallel: ddp}", "{mode: Auto, tensor: 4}"))
    shown = json.loads(plan(capsys, str(file), "-o", "json"))
    assert shown["as_written"] is None
    degrees = [layout["trainer"]["parallelism"]["tensor"] for layout in shown["layouts"]]
    assert degrees == [4] * 5


def test_hugging_face_s_config_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    raw = {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    }
    file.write_text(json.dumps(raw))
    assert "1.10 G parameters" in plan(capsys, str(file), *SMALL)
    file.write_text(json.dumps({**raw, "model_type": "mamba"}))
    refused = plan(capsys, str(file), *SMALL, code=2)
    assert not missing(refused, "model_type", "'mamba'", "llama")


SCORED = """\
gpus,global_batch,micro_batch,hidden,heads,layers,sequence,tensor,data,pipeline,iteration_ms
64,512,8,3072,32,30,2048,1,64,1,3566.5
64,512,8,3072,32,30,2048,2,32,1,3975.2
64,512,4,3072,32,30,2048,4,16,1,4764
"""


def test_measured_rows_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(SCORED)
    assert "3 measured" in plan(capsys, "--score", str(file))
    shown = json.loads(plan(capsys, "--score", str(file), "-o", "json"))
    assert len(shown["rows"]) == 3
    assert shown["summary"]["mean_absolute"] < 0.1
    assert all(abs(row["predicted_ms"] / row["measured_ms"] - 1) < 0.1 for row in shown["rows"])
    file.write_text(SCORED.replace("3072", "wide"))
    assert "line 2: hidden:" in plan(capsys, "--score", str(file), code=2)
    file.write_text("\n".join(line.rpartition(",")[0] for line in SCORED.splitlines()))
    assert "no row is measured" in plan(capsys, "--score", str(file), code=2)


def play_python(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs instead of the interpreter that would run the trainer."""
    played = folder / "python"
    played.write_text(f"#!/bin/sh\n{script}\n")
    played.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(played))


def test_a_rehearsal_corrects_the_bill_and_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The trainer's part is played by a file that it would write; it runs in tests/gloo."""
    arguments = ["llama-8b", *SMALL, "--top", "1"]
    before = json.loads(plan(capsys, *arguments, "-o", "json"))["layouts"][0]
    sliced = TrainerConfig(
        model=replace(MODEL_PRESETS["llama-8b"], layers=2),
        data=DataConfig(sequence_length=2048),
        global_batch_size=2,
        micro_batch_size=1,
    )
    setup = TrainingSetup.of(sliced, Layout.of(sliced.parallelism, world_size=2))
    state = sum(line.size for line in rank_lines(setup, 0) if is_state(line))

    measured = {"gpu": "", "state_bytes": round(1.25 * state), "kept_bytes": None}
    written = {
        "slice": {"config": sliced.written(), "ranks": 2, "smaller": ["layers 32 to 2"]},
        "measured": measured | {"peak_bytes": None, "step_seconds": 0.5},
    }
    (tmp_path / "written").write_text(json.dumps(written))
    play_python(
        f"test \"$3 $4 $6 $7 $PYTHONSAFEPATH\" = 'rehearse --config --of-ranks 8 1' &&"
        f" cp {tmp_path}/written $9",
        tmp_path,
        monkeypatch,
    )
    shown = json.loads(plan(capsys, *arguments, "--rehearse", "-o", "json"))
    assert shown["rehearsal"]["correction"] == {"state": pytest.approx(1.25), "moving": 1.0}
    sizes = [
        {line["name"]: line["bytes"] for line in layout["bill"]}
        for layout in (before, shown["layouts"][0])
        if layout["layout"] == before["layout"]
    ]
    assert sizes[-1]["optimizer state"] == pytest.approx(1.25 * sizes[0]["optimizer state"], abs=2)
    text = plan(capsys, *arguments, "--rehearse")
    assert not missing(text, "REHEARSED", "FSDP2", "500 ms", "layers 32 to 2")


def test_without_torch_a_rehearsal_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "trainer's image" in plan(capsys, "llama-8b", *SMALL, "--rehearse", code=2)


def test_a_slice_that_fails_says_what_the_trainer_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play_python("echo 'out of memory on rank 0' >&2; exit 3", tmp_path, monkeypatch)
    assert program.main(["plan", "llama-8b", *SMALL, "--rehearse"]) == 1
    assert "out of memory on rank 0" in capsys.readouterr().err
