"""The grammar of `drumline plan`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from drumline_cli.options import add_output, finite_number, whole_number

# Largest numbers that are planned. The search for layouts tries each divisor of a batch.
MOST_SEQUENCES: Final = 10_000_000
MOST_TOKENS: Final = 100_000_000
MOST_RANK: Final = 65_536
MOST_GPUS: Final = 1_000_000
_Group = Any
"""Result of `ArgumentParser.add_argument_group`. argparse does not name its type."""

DESCRIPTION: Final = """\
Find the fastest layout of a model on GPUs. Shows its memory line by line, the parts of a step, the
time spent waiting, measures that would help, and why other layouts were rejected. The command needs
no cluster and no GPU. Only --rehearse needs torch. For the accuracy of predictions see
docs/planner.md.
"""
EXAMPLES: Final = """\
examples:
  drumline plan llama-8b --gpu H100 --gpus 8 --sequence 8192 --batch 64
  drumline plan config.json --gpu H200 --gpus 64 --batch 512 -o html > plan.html
  drumline plan --dimensions layers=48,hidden=6144,heads=48 --gpu A100 --gpus 256 --batch 1024
  drumline plan job.yaml --gpu H100
  drumline plan tuned.yaml --like llama-8b
  drumline plan llama-70b --gpus 64 --batch 512 --compare tensor=8,recompute=full,micro_batch=2
  drumline plan llama-8b --gpus 8..1024 --batch 1024
  drumline plan job.yaml --rehearse
  drumline plan --score measured.csv
"""


def add_arguments(plan: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    plan.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a preset (llama-8b), a Hugging Face config.json, or the YAML of a TrainingJob and"
        " its pool",
    )
    plan.add_argument(
        "--dimensions",
        metavar="FIELD=N,...",
        help="dimensions instead of MODEL: layers, hidden, heads, ...",
    )
    plan.add_argument(
        "--score", metavar="FILE", help="compare predictions with measured iterations of a CSV file"
    )
    add_output(plan, "table", "json", "html")
    plan.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="write pictures (PNG) of layouts, memory against time and a curve to this folder",
    )
    plan.add_argument(
        "--top",
        type=whole_number(1, 1000),
        default=5,
        metavar="N",
        help="number of layouts to show (default: 5)",
    )
    plan.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="show your own layout beside the others: data_parallel, replicate, tensor,"
        " pipeline, schedule, stages_per_rank, context, expert, micro_batch, recompute,"
        " offload_activations; may be repeated",
    )
    plan.add_argument(
        "--rehearse",
        action="store_true",
        help="train the smallest slice of the layout on this machine for three steps, and"
        " correct the memory estimates by the measured memory (needs the bundled trainer;"
        " uses CPUs if there is no GPU)",
    )
    _add_work(plan.add_argument_group("training"))
    _add_cluster(plan.add_argument_group("cluster"))


def _add_work(group: _Group) -> None:
    group.add_argument(
        "--like",
        metavar="MODEL",
        help="model of a TrainingJob with model FromFolder: the folder's config.json, or a"
        " preset of the same size",
    )
    group.add_argument(
        "--batch",
        type=whole_number(1, MOST_SEQUENCES),
        metavar="N",
        help="sequences per step (default: 256)",
    )
    group.add_argument(
        "--sequence",
        type=whole_number(1, MOST_TOKENS),
        metavar="N",
        help="tokens per sequence (default: 4096)",
    )
    group.add_argument(
        "--precision", choices=("bf16", "fp16", "fp32"), help="number format (default: bf16)"
    )
    group.add_argument("--fp8", action="store_true", help="compute projections in fp8")
    group.add_argument(
        "--lora",
        type=whole_number(1, MOST_RANK),
        metavar="RANK",
        help="train only LoRA adapters of this rank",
    )
    group.add_argument(
        "--offload-optimizer", action="store_true", help="keep the optimizer's state in host memory"
    )
    group.add_argument(
        "--tokens",
        type=finite_number,
        metavar="N",
        help="tokens of the whole run, to compute its duration",
    )
    group.add_argument("--price", type=finite_number, metavar="X", help="price of a GPU per hour")
    group.add_argument(
        "--by",
        choices=("time", "cost"),
        help="with a range of --gpus: plan the fastest or the cheapest number of GPUs (default:"
        " the largest number; with --within the cheapest)",
    )
    group.add_argument(
        "--within",
        type=finite_number,
        metavar="DAYS",
        help="maximum duration of the run in days; needs --tokens",
    )


def _add_cluster(group: _Group) -> None:
    group.add_argument(
        "--gpu",
        metavar="NAME",
        help="A100, H100, H100-96GB (HBM2e, 500 W), H200, B200, GB200 or MI300X (default: the"
        " GpuPool in MODEL, or H100)",
    )
    group.add_argument(
        "--gpus", metavar="N|A..B", help="number of GPUs, or a range for a curve (default: 8)"
    )
    group.add_argument(
        "--network",
        metavar="NAME",
        help="network between nodes (default: the GpuPool in MODEL, or infiniband-ndr)",
    )
    group.add_argument(
        "--inside",
        metavar="NAME",
        help="link inside a node, such as pcie5 (default: the GPU's own link)",
    )
    group.add_argument(
        "--gpus-per-node",
        type=whole_number(1, MOST_GPUS),
        metavar="N",
        help="GPUs per node (default: the job's number, or 8)",
    )
    group.add_argument(
        "--domain", type=whole_number(1, MOST_GPUS), metavar="N", help="GPUs per NVLink domain"
    )
    group.add_argument(
        "--topology",
        choices=("fat-tree", "rail", "dragonfly"),
        default="fat-tree",
        help="network topology (default: fat-tree)",
    )
    group.add_argument(
        "--group",
        type=whole_number(1, MOST_GPUS),
        metavar="N",
        help="GPUs below a leaf switch, or per dragonfly group",
    )
    group.add_argument(
        "--oversubscription",
        type=finite_number,
        default=1.0,
        metavar="X",
        help="bandwidth ratio within and out of a group (default: 1)",
    )
    group.add_argument(
        "--reserve",
        type=finite_number,
        default=0.06,
        metavar="SHARE",
        help="share of memory to leave free (default: 0.06)",
    )
