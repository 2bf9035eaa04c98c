"""The rank's program of `check-nodes`: measures, and rank 0 prints the verdicts as a line of JSON.

Each rank checks its own device first. Then pods exchange messages pairwise, all pairs at once, in
two rounds: rank k of one pod with rank k of the other.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import asdict
from itertools import count

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.config import ParallelismConfig
from drumline_contract.layout import Layout
from drumline_trainer.host.cpus import threads_per_rank
from drumline_trainer.node_check import measure
from drumline_trainer.node_check.options import CheckOptions
from drumline_trainer.node_check.verdicts import (
    ROUNDS,
    MemberFigures,
    NodeCheck,
    Pair,
    judged,
    pairs_of,
)
from drumline_trainer.preflight import environment_facts
from drumline_trainer.recovery.rendezvous import backend_of, join
from drumline_trainer.sharding.device import device_of_rank
from drumline_trainer.sharding.gpus import DEVICE_VARIABLE

_GPU_MATRIX, _CPU_MATRIX = 8192, 512
_GPU_MEMORY, _CPU_MEMORY = 4 << 30, 16 << 20
_GPU_MESSAGE, _CPU_MESSAGE = 256 << 20, 4 << 20
_NO_PARTNER = -1.0


def check_rank(placement: Placement, *, options: CheckOptions) -> int:
    """Run the checks as a rank. Returns an exit code: 0 whatever they find."""
    # Phase 1: the same threads and device selection as in training.
    torch.set_num_threads(threads_per_rank(placement.local_world_size))
    asked = {} if options.device is None else {DEVICE_VARIABLE: options.device}
    device = device_of_rank(
        placement.local_rank, of=placement.local_world_size, environ={**os.environ, **asked}
    )
    # Phase 2: join. The facts make sure that all ranks run the same check.
    layout = Layout.of(ParallelismConfig(), world_size=placement.world_size)
    facts = environment_facts(asdict(options), layout, backend=backend_of(device))
    join(placement, device=device, facts=facts)
    # Phase 3: own figures first, then the pairs. Their order is the row format of `verdict_of`.
    figures = torch.tensor(
        [*_own_figures(device, options), *_rates(placement, device=device, options=options)],
        dtype=torch.float64,
        device=device,
    )
    # Phase 4: every rank gets all rows. fp64 holds rates that exceed the 24 bits of fp32.
    every = [torch.empty_like(figures) for _ in range(placement.world_size)]
    dist.all_gather(every, figures)
    if placement.rank == 0:
        rows = [[float(figure) for figure in row.cpu().numpy()] for row in every]
        checked = verdict_of(rows, ranks_per_member=placement.local_world_size)
        sys.stdout.write(f"{checked.encode()}\n")
        sys.stdout.flush()
    # All ranks leave together, so that no peer sees a lost connection.
    dist.destroy_process_group()
    return ExitCode.OK


def verdict_of(rows: list[list[float]], *, ranks_per_member: int) -> NodeCheck:
    """Compute the verdicts from a row of figures for each rank."""
    members = len(rows) // ranks_per_member
    # Ranks are numbered by member.
    of_member = [rows[i * ranks_per_member : (i + 1) * ranks_per_member] for i in range(members)]
    figures = [
        MemberFigures(
            # A member is as fast as its slowest rank, because training waits for it.
            index=index,
            matmul_tflops=round(min(row[0] for row in ranks) / 1e12, 4),
            memory_gbps=round(min(row[2] for row in ranks) / 1e9, 3),
            wrong=tuple(
                what
                for place, what in ((1, "matmul"), (3, "memory"))
                if not all(row[place] for row in ranks)
            ),
        )
        for index, ranks in enumerate(of_member)
    ]
    rates: dict[Pair, float] = {}
    for number in range(ROUNDS):
        for pair in pairs_of(members, round_number=number):
            # Columns 4 and later are the rates of the rounds. The slower direction counts.
            both = [row[4 + number] for member in pair for row in of_member[member]]
            rates[pair] = round(min(both) / 1e9, 3)
    return judged(figures, rates)


def _own_figures(device: torch.device, options: CheckOptions) -> list[float]:
    """Measure operations and bytes per second, each with whether all results were right."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True  # the units that training uses; still exact
    size = options.matrix or (_GPU_MATRIX if on_gpu else _CPU_MATRIX)
    product = measure.matmul(device, size=size, repeats=options.repeats)
    size = options.memory or (_GPU_MEMORY if on_gpu else _CPU_MEMORY)
    copy = measure.memory(device, size=size, repeats=options.repeats)
    return [product.rate, float(product.right), copy.rate, float(copy.right)]


def _rates(placement: Placement, *, device: torch.device, options: CheckOptions) -> list[float]:
    """Return bytes per second to and from the partner, by round; `_NO_PARTNER` without one."""
    on_gpu = device.type == "cuda"
    size = options.message or (_GPU_MESSAGE if on_gpu else _CPU_MESSAGE)
    # Two buffers, since send and receive run at once.
    ours, theirs = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    here = placement.rank // placement.local_world_size
    members = placement.world_size // placement.local_world_size
    rates: list[float] = []
    for number in range(ROUNDS):
        pairs = pairs_of(members, round_number=number)
        pair = next((pair for pair in pairs if here in pair), None)
        seconds: list[float] = []
        for repeat in count():
            # The barrier lets all pairs start at once, so that they load the network as training
            # does.
            dist.barrier()
            # One repeat more than asked: the first one is not counted.
            if repeat > options.repeats:
                break
            if pair is None:
                continue
            # The sum of the pair without this member is the other member.
            partner = (sum(pair) - here) * placement.local_world_size + placement.local_rank
            began = time.perf_counter()
            _exchange(ours, theirs, partner=partner)
            if on_gpu:
                torch.cuda.synchronize(device)
            if repeat:  # the first one connects
                seconds.append(time.perf_counter() - began)
        # Bytes in both directions. The median ignores one slow repeat.
        rates.append(2.0 * size / statistics.median(seconds) if seconds else _NO_PARTNER)
    return rates


def _exchange(ours: torch.Tensor, theirs: torch.Tensor, *, partner: int) -> None:
    """Send and receive at once: two blocking sends would wait for each other."""
    messages = [dist.P2POp(dist.isend, ours, partner), dist.P2POp(dist.irecv, theirs, partner)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
