"""What `drumline plan` says of input that cannot be used: the field, and what would work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_command import JOB, POOL, plan


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["llama-9b"], "model: 'llama-9b' is not known; did you mean llama-8b?"),
        (["llama-8b", "--gpu", "H1000"], "gpu: 'H1000' is not known; did you mean H100?"),
        (["--dimensions", "layers=2,hidden=6144,heads=47"], "use 32 or 48"),
        (["--dimensions", "layers=2,hidden=64"], "dimensions: heads is missing"),
        (
            ["--dimensions", "layers=2,hiden=64,heads=4"],
            "'hiden' is not known; did you mean hidden?",
        ),
        (["--dimensions", "layers=-2,hidden=64,heads=4"], "model.layers: must be greater than 0"),
        ([], "give exactly one of MODEL and --dimensions"),
        (["llama-8b", "--gpus", "0"], "--gpus must be between 1 and"),
        (["llama-8b", "--gpus", "many"], "--gpus must be a number or a range"),
        (["llama-8b", "--reserve", "1"], "--reserve must be at least 0 and below 1"),
        (["llama-8b", "--compare", "tensr=2"], "did you mean tensor?"),
        (["llama-8b", "--compare", "schedule=gpip"], "did you mean gpipe?"),
        (["llama-8b", "--network", "infiniband"], "network: 'infiniband' is not known"),
        (["llama-8b", "--price", "0"], "--price must be above 0"),
        (["llama-8b", "--inside", "pcie"], "--inside: 'pcie' is not known; did you mean pcie5?"),
        (["llama-8b", "--compare", "tensor"], "--compare: tensor has no value; for example"),
        (["llama-8b", "--compare", "tensor=1,tensor=2"], "--compare: tensor is given twice"),
        (["llama-8b", "--compare", "recompute=x"], "'x' is not known. There are none, selective"),
        (["llama-8b", "--oversubscription", "4"], "--oversubscription and --topology need --group"),
        (["llama-8b", "--topology", "rail"], "--oversubscription and --topology need --group"),
        (["examples/own-template.yaml"], "only jobs with trainer are planned"),
        (["nowhere.json"], "nowhere.json: No such file"),
        (["--score", "nowhere.csv"], "nowhere.csv: No such file"),
    ],
)
def test_bad_input_names_the_field(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in plan(capsys, *arguments, code=2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            ("globalBatchSize", "globalBatchsize"),
            "line 12: .*; did you mean globalBatchSize?",
        ),
        (("dataParallel: ddp", "tenser: 2"), "parallelism.tenser: unknown .* did you mean tensor?"),
        (("networkGbps", "netwrkGbps"), "line 20: spec.hardware.netwrkGbps: unknown field"),
        (("Size: 32", "Size: 33"), "line 12: .*globalBatchSize: 33 does not split .* 32 or 48"),
        (("dataParallel: ddp", "tensor: 3"), "line 13: .* divide by 3, .* 2 or 4 would do"),
        (("nodes: 2", "nodes: 2\n  minNodes: 3"), "line 7: spec.minNodes: "),
    ],
)
def test_a_job_s_field_that_cannot_be_is_named_with_what_can(
    wrong: tuple[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody knows would be left out: the plan would be of another job, in silence."""
    file = tmp_path / "job.yaml"
    file.write_text((JOB + POOL).replace(*wrong))
    assert re.search(says, plan(capsys, str(file), code=2))
