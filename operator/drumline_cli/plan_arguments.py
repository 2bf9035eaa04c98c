"""The grammar of `drumline plan`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from drumline_cli.options import add_output

_Group = Any
"""What `ArgumentParser.add_argument_group` gives; argparse does not name its type."""

DESCRIPTION: Final = """\
Find the fastest layout of a model on GPUs and show its bill: memory line by line, the parts of a
step, what it waits for, which measures would help, and why other layouts were refused. Nothing is
asked of any cluster, no GPU is needed, and torch only for --rehearse. How far predictions are off:
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
    """Every option of the command."""
    plan.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a preset (llama-8b), Hugging Face's config.json, a TrainingJob's YAML with its pool",
    )
    plan.add_argument(
        "--dimensions", metavar="FIELD=N,...", help="instead of MODEL: layers, hidden, heads, ..."
    )
    plan.add_argument("--score", metavar="FILE", help="predict measured iterations of a CSV file")
    add_output(plan, "table", "json", "html")
    plan.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="write pictures (PNG) of layouts, memory against time and a curve there",
    )
    plan.add_argument("--top", type=int, default=5, metavar="N", help="layouts to show; default: 5")
    plan.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="a layout of your own beside them: data_parallel, replicate, tensor, pipeline,"
        " schedule, stages_per_rank, context, expert, micro_batch, recompute, offload_activations;"
        " may be repeated",
    )
    plan.add_argument(
        "--rehearse",
        action="store_true",
        help="train the smallest slice of the layout here for three steps, and correct the bill by"
        " what it held (needs the bundled trainer; on processors where there is no GPU)",
    )
    _add_work(plan.add_argument_group("what is trained"))
    _add_cluster(plan.add_argument_group("on what"))


def _add_work(group: _Group) -> None:
    group.add_argument(
        "--like",
        metavar="MODEL",
        help="of a TrainingJob with model FromFolder: that folder's config.json, or a preset of its"
        " size",
    )
    group.add_argument("--batch", type=int, metavar="N", help="sequences of a step; default: 256")
    group.add_argument("--sequence", type=int, metavar="N", help="tokens of one; default: 4096")
    group.add_argument("--precision", choices=("bf16", "fp16", "fp32"), help="default: bf16")
    group.add_argument("--fp8", action="store_true", help="projections multiply in 8-bit floats")
    group.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank only")
    group.add_argument(
        "--offload-optimizer", action="store_true", help="keep the optimizer's state on the host"
    )
    group.add_argument("--tokens", type=float, metavar="N", help="of the whole run, for its days")
    group.add_argument("--price", type=float, metavar="X", help="of a GPU for an hour")
    group.add_argument(
        "--by",
        choices=("time", "cost"),
        help="of a range of --gpus plan the fastest or cheapest number; default: the largest, with"
        " --within the cheapest",
    )
    group.add_argument(
        "--within", type=float, metavar="DAYS", help="that the run may take, with --tokens"
    )


def _add_cluster(group: _Group) -> None:
    group.add_argument(
        "--gpu",
        metavar="NAME",
        help="A100, H100, H100-96GB (HBM2e, 500 W), H200, B200, GB200, MI300X; default: of the"
        " GpuPool in MODEL, else H100",
    )
    group.add_argument(
        "--gpus", metavar="N|A..B", help="how many, or a range for a curve; default: 8"
    )
    group.add_argument(
        "--network", metavar="NAME", help="default: of the GpuPool in MODEL, else infiniband-ndr"
    )
    group.add_argument(
        "--inside", metavar="NAME", help="link inside a node, such as pcie5; default: the GPU's own"
    )
    group.add_argument("--gpus-per-node", type=int, metavar="N", help="default: the job's, else 8")
    group.add_argument("--domain", type=int, metavar="N", help="GPUs of one NVLink domain")
    group.add_argument(
        "--topology", choices=("fat-tree", "rail", "dragonfly"), default="fat-tree", help="of nodes"
    )
    group.add_argument("--group", type=int, metavar="N", help="GPUs below a leaf, or of a group")
    group.add_argument(
        "--oversubscription", type=float, default=1.0, metavar="X", help="out of a group; default 1"
    )
    group.add_argument(
        "--reserve", type=float, default=0.06, metavar="SHARE", help="memory left free; 0.06"
    )
