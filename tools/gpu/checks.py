"""What is checked, in this order: the first ones say whether the later ones mean anything.

What a short loan of a machine is for comes before what processors can stand in for: the check that
runs when the time is over is cut, and those behind it do not run.
"""

from __future__ import annotations

from tools.gpu import exactness, kernels, nodes, recovery, speed
from tools.gpu.outcomes import Check
from tools.gpu.runs import Bench

CHECKS: dict[str, Check[Bench]] = {
    "devices": Check(
        summary="GPUs that are not there end the run with exit code 69",
        run=recovery.missing_gpus,
    ),
    "losses": Check(
        summary="losses in fp32 are the processor's",
        run=exactness.same_as_processors,
    ),
    "kernels": Check(
        summary="kernels of documents, experts and fp8 give what is written out",
        run=kernels.beside_plain_arithmetic,
    ),
    "determinism": Check(
        summary="the same bits twice, and from a checkpoint after a kill",
        run=exactness.same_bits_again,
    ),
    "compile": Check(
        summary="compiled layers give eager losses",
        run=exactness.compiled_blocks,
    ),
    "speed": Check(
        summary="tokens a second and MFU of published sizes",
        run=speed.published_sizes,
    ),
    "memory": Check(
        summary="the allocator's peak is the planner's bill",
        run=speed.peak_beside_the_bill,
    ),
    "price": Check(
        summary="what deterministic kernels cost",
        run=exactness.price_of_determinism,
    ),
    "streams": Check(
        summary="offload and saves beside the steps change no bit",
        run=exactness.streams_change_nothing,
    ),
    "documents": Check(
        summary="attention within documents by the kernel for runs is the one that is written out",
        run=exactness.documents,
    ),
    "fp8": Check(
        summary="products in fp8 learn as bf16 does",
        run=exactness.fp8_learns,
    ),
    "ranks": Check(
        summary="every parallelism over NCCL gives one rank's losses",
        run=exactness.same_over_ranks,
    ),
    "kill": Check(
        summary="a rank is killed: the agent restarts it alone, and the losses are the same bits",
        run=recovery.killed_rank,
    ),
    "nodes": Check(
        summary="check-nodes finds products and memory right on each GPU",
        run=nodes.checked,
    ),
    "sanitizer": Check(
        summary="compute-sanitizer finds no wrong access, where it is installed",
        run=exactness.sanitized,
    ),
}
