"""Scripts of Slurm: what is read of them, and what is refused."""

from __future__ import annotations

import pytest

from drumline_cli.convert.model import Conversion, ConversionError, Fate, Wanted
from drumline_cli.convert.sbatch import convert_sbatch
from drumline_cli.convert.slurm_options import seconds_of

WANTED = Wanted(queue="q", image="registry.example.com/train:1")


def script(*lines: str) -> Conversion:
    return convert_sbatch("\n".join(("#!/bin/bash", *lines)), WANTED)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("2:00:01", 7201),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-00:00:01", 86_401),
        ("UNLIMITED", None),
    ],
)
def test_limits_in_every_form_of_slurm(text: str, seconds: int | None) -> None:
    assert seconds_of(text, path="--time") == seconds


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ("--gres=gpu:4", 4),
        ("--gres=gpu:h100:8", 8),
        ("--gpus-per-node=2", 2),
        ("-N2 -G 8", 4),
        ("--gpus-per-task=1 --ntasks-per-node=4", 4),
    ],
)
def test_gpus_of_each_node(asked: str, gpus: int) -> None:
    converted = script(f"#SBATCH {asked}", "srun python train.py")
    assert converted.job["spec"]["gpusPerNode"] == gpus


def test_a_task_a_node_is_started_once_a_pod_and_an_option_of_srun_counts() -> None:
    converted = script(
        "#SBATCH -N 2 --gres=gpu:8",
        "srun --ntasks-per-node=1 --label torchrun --nnodes=$SLURM_NNODES 'a b.py'",
    )
    template = converted.job["spec"]["template"]
    assert template["launch"] == "PerPod"
    assert template["command"] == ["bash", "-c", "torchrun --nnodes=$SLURM_NNODES 'a b.py'"]
    looked_at = [note.text for note in converted.notes if note.fate is Fate.CHECK]
    assert any("use NNODES" in text for text in looked_at)


def test_the_command_of_a_script_for_a_single_node_needs_no_srun() -> None:
    converted = script("#SBATCH --gres=gpu:1", "source venv/bin/activate", "python train.py")
    assert converted.job["spec"]["template"]["command"] == ["python", "train.py"]
    assert any(note.path.startswith("line 3: source") for note in converted.notes)


def test_every_option_is_named() -> None:
    converted = script("#SBATCH --gres=gpu:1 --array=0-9 --strange=1 -C fast", "python train.py")
    named = {note.path.rpartition("--")[2] for note in converted.notes}
    assert {"gres", "array", "strange", "constraint"} <= named


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["#SBATCH -N2 --gres=gpu:1", "python train.py"], "without srun"),
        (["#SBATCH --gres=gpu:1", "srun a", "srun b"], "line 4: a second srun"),
        (["python train.py"], "requests no GPU"),
        (["#SBATCH --gres=gpu:8 --ntasks-per-node=3", "srun a"], "3 tasks"),
        (["#SBATCH --gres=gpu:1 --time=soon", "a"], "line 2: --time: soon"),
        (["#SBATCH --gres=gpu:1", "srun"], "without a command"),
        (["#SBATCH --gres='gpu:1", "srun a"], "not shell"),
        (["#SBATCH --gres=gpu:1"], "runs no command"),
    ],
)
def test_what_cannot_be_a_trainingjob_names_the_line(lines: list[str], problem: str) -> None:
    with pytest.raises(ConversionError, match=problem):
        script(*lines)
