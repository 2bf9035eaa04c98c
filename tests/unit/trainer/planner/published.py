"""Published measurements, and the tables of docs/architecture-planner.md: predictions beside them.

`python -m tests.unit.trainer.planner.published` prints the tables, `...planner.targets` what is
aimed at. Only measurements stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from drumline_contract.config import MODEL_PRESETS, DataParallel, Recompute, Schedule
from drumline_contract.hardware import GPU_MODELS, LINKS, GpuCluster, Link
from drumline_contract.layout import Layout
from drumline_contract.shapes.flops import flops_per_token
from drumline_planner import activations
from drumline_planner.memory import memory_bill
from drumline_planner.network import cluster_of
from drumline_planner.pipeline_schedules import in_flight
from drumline_planner.setup import MEGATRON, MEGATRON_CORE, TORCHTITAN, TrainingSetup
from drumline_planner.step_time import step_time

from .clusters import gpt

GIB = 2**30
HDR = Link(name="hdr", bandwidth=25e9, latency=8e-6)


@dataclass(frozen=True, kw_only=True)
class Published:
    """One measurement."""

    name: str
    setup: TrainingSetup
    cluster: GpuCluster
    seconds: float
    memory_gib: float | None = None

    @property
    def predicted(self) -> float:
        return step_time(self.setup, self.cluster).seconds

    @property
    def predicted_gib(self) -> float:
        return memory_bill(self.setup, capacity=1).total / GIB

    @property
    def error(self) -> float:
        return self.predicted / self.seconds - 1


def a100(gpus: int) -> GpuCluster:
    return cluster_of(GPU_MODELS["A100-80GB"], gpus=gpus, network=HDR)


def pipelined(*, copies: int, tensor: int, pipeline: int, stages: int, by_position: bool) -> Layout:
    return Layout(
        data_parallel=DataParallel.DDP,
        replicate=copies,
        tensor=tensor,
        pipeline=pipeline,
        sequence_parallel=by_position,
        schedule=Schedule.INTERLEAVED if stages > 1 else Schedule.ONE_F_ONE_B,
        stages_per_rank=stages,
    )


MEGATRON_2021 = [
    # name, heads, hidden, layers, tensor, pipeline, GPUs, batch, measured TFLOP/s of a GPU
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 138),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 142),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
    ("1008B", 160, 25600, 128, 8, 64, 3072, 3072, 163),
]
"""Narayanan et al. 2021, table 1: A100-80GB, sequences of 2048, full recompute. The paper leaves
micro-batch and stages a rank out: they are the fastest by the model."""


def megatron_2021() -> list[Published]:
    rows: list[Published] = []
    for name, heads, hidden, layers, tensor, pipeline, gpus, batch, teraflops in MEGATRON_2021:
        share = 1 + 2048 / (6 * hidden) + 51_200 / (16 * layers * hidden)
        flops = 96 * batch * 2048 * layers * hidden**2 * share
        copies = gpus // tensor // pipeline
        options: list[Published] = []
        for rows_each in (1, 2, 4, 8):
            for stages in (1, 2, 3, 4):
                count = batch // copies // rows_each
                if batch % (copies * rows_each) or count < pipeline or layers % (pipeline * stages):
                    continue
                if stages > 1 and (pipeline == 1 or count % pipeline):
                    continue
                of = TrainingSetup(
                    model=gpt(hidden=hidden, heads=heads, layers=layers),
                    layout=pipelined(
                        copies=copies,
                        tensor=tensor,
                        pipeline=pipeline,
                        stages=stages,
                        by_position=False,
                    ),
                    sequence_length=2048,
                    micro_batch=rows_each,
                    micro_batches=count,
                    recompute=Recompute.FULL,
                    software=MEGATRON,
                )
                seconds = flops / (gpus * teraflops * 1e12)
                options.append(
                    Published(
                        name=f"{name}, {gpus} GPUs, TP{tensor} PP{pipeline}",
                        setup=of,
                        cluster=a100(gpus),
                        seconds=seconds,
                    )
                )
        rows.append(min(options, key=lambda row: row.predicted))
    return rows


KORTHIKANTI = [
    # name, heads, hidden, layers, tensor, pipeline, stages, GPUs, micro-batch, batch,
    # seconds with full recompute, with sequence parallelism and selective,
    # GiB of activations with none, with sequence parallelism and selective
    ("22B", 64, 6144, 48, 8, 1, 1, 8, 4, 4, 1.42, 1.10, 59.25, 9.56),
    ("175B", 96, 12288, 96, 8, 8, 3, 64, 1, 64, 18.13, 13.75, 66.8, 12.35),
    ("530B", 128, 20480, 105, 8, 35, 3, 280, 1, 280, 49.05, 37.83, 114.0, 23.1),
    ("1T", 160, 25600, 128, 8, 64, 1, 512, 1, 512, 94.42, 71.49, 131.0, 26.6),
]
"""Korthikanti et al. 2022: A100-80GB, sequences of 2048, one copy of the model."""


def korthikanti(
    row: tuple[str | float, ...], *, mode: Recompute, by_position: bool, seconds: float
) -> Published:
    heads, hidden, layers, tensor, pipeline, stages, gpus, rows, batch = map(int, row[1:10])
    of = TrainingSetup(
        model=gpt(hidden=hidden, heads=heads, layers=layers),
        layout=pipelined(
            copies=1, tensor=tensor, pipeline=pipeline, stages=stages, by_position=by_position
        ),
        sequence_length=2048,
        micro_batch=rows,
        micro_batches=batch // rows,
        recompute=mode,
        software=MEGATRON,
    )
    says = "selective, SP" if by_position else str(mode)
    return Published(name=f"{row[0]}, {says}", setup=of, cluster=a100(gpus), seconds=seconds)


def korthikanti_times() -> list[Published]:
    return [
        korthikanti(row, mode=mode, by_position=by_position, seconds=float(row[column]))
        for row in KORTHIKANTI
        for mode, by_position, column in (
            (Recompute.FULL, False, 10),
            (Recompute.SELECTIVE, True, 11),
        )
    ]


def korthikanti_activations() -> list[tuple[str, float, float]]:
    """Name, GiB as published, GiB as predicted."""
    rows: list[tuple[str, float, float]] = []
    for row in KORTHIKANTI:
        for mode, by_position, column in (
            (Recompute.NONE, False, 12),
            (Recompute.SELECTIVE, True, 13),
        ):
            of = korthikanti(row, mode=mode, by_position=by_position, seconds=1.0)
            layout = of.setup.layout
            alive = 1
            if layout.pipeline > 1:
                alive = sum(
                    in_flight(
                        layout.schedule,
                        ranks=layout.pipeline,
                        stages_per_rank=layout.stages_per_rank,
                        micro_batches=of.setup.micro_batches,
                    )[0]
                )
            each = of.setup.model.layers // layout.stages
            size = alive * activations.layers_kept(of.setup, range(each))
            # and the embedding's dropout of every micro-batch in flight, as the paper counts it
            size += layout.pipeline * of.setup.own_tokens * of.setup.model.hidden_size
            rows.append((of.name, float(row[column]), size / GIB))
    return rows


def mt_nlg() -> list[Published]:
    """Smith et al. 2022: 530B, TP8 PP35, batch 1920."""
    return [
        Published(
            name=f"{gpus} GPUs",
            setup=TrainingSetup(
                model=gpt(hidden=20480, heads=128, layers=105),
                layout=pipelined(
                    copies=gpus // 280, tensor=8, pipeline=35, stages=1, by_position=False
                ),
                sequence_length=2048,
                micro_batch=1,
                micro_batches=1920 * 280 // gpus,
                recompute=Recompute.FULL,
                software=MEGATRON,
            ),
            cluster=a100(gpus),
            seconds=seconds,
        )
        for gpus, seconds in ((2240, 60.1), (2800, 50.2), (3360, 44.4))
    ]


def h100(gpus: int) -> GpuCluster:
    return cluster_of(GPU_MODELS["H100"], gpus=gpus, network=LINKS["infiniband-ndr"])


def llama_3() -> list[Published]:
    """Llama team 2024, table 4: 405B, TP8 PP16, 16 M tokens a batch; TFLOP/s of a GPU.

    Gradients and optimizer state are sharded, weights are not.
    """
    rows: list[Published] = []
    model = MODEL_PRESETS["llama-405b"]
    for gpus, copies, context, length, teraflops in (
        (8192, 64, 1, 8192, 430),
        (16384, 128, 1, 8192, 400),
        (16384, 8, 16, 131_072, 380),
    ):
        count = 16 * 2**20 // length // copies
        tokens = 16 * 2**20
        flops = float(flops_per_token(model, sequence_length=length)) * tokens
        layout = pipelined(copies=copies, tensor=8, pipeline=16, stages=4, by_position=True)
        rows.append(
            Published(
                name=f"{gpus} GPUs, sequences of {length}",
                setup=TrainingSetup(
                    model=model,
                    layout=replace(layout, context=context, data_parallel=DataParallel.ZERO2),
                    sequence_length=length,
                    micro_batch=1,
                    micro_batches=count,
                    recompute=Recompute.NONE,
                    software=MEGATRON_CORE,
                ),
                cluster=h100(gpus),
                seconds=flops / (gpus * teraflops * 1e12),
            )
        )
    return rows


def torchtitan() -> list[Published]:
    """torchtitan's benchmarks of 2024-12 and 2025: H100 of 96 GB; tokens/s and GiB of a GPU."""
    full, selective = Recompute.FULL, Recompute.SELECTIVE
    fsdp = Layout
    rows: list[tuple[str, str, Layout, int, int, int, Recompute, bool, float, float | None]] = [
        ("8B", "llama-8b", fsdp(shard=8), 8192, 2, 1, selective, False, 6667, 77.0),
        ("8B fp8", "llama-8b", fsdp(shard=8), 8192, 2, 1, selective, True, 8532, 76.8),
        ("8B", "llama-8b", fsdp(shard=128), 8192, 2, 1, selective, False, 6514, 62.0),
        ("8B fp8", "llama-8b", fsdp(shard=128), 8192, 2, 1, selective, True, 8380, 61.8),
        ("8B fp8", "llama-8b", fsdp(shard=8), 32_768, 1, 1, full, True, 3890, 83.9),
        ("8B fp8", "llama-8b", fsdp(shard=4, context=2), 65_536, 1, 1, full, True, 2540, 84.2),
        ("8B fp8", "llama-8b", fsdp(shard=2, context=4), 131_072, 1, 1, full, True, 1071, 84.0),
        ("8B fp8", "llama-8b", fsdp(shard=1, context=8), 262_144, 1, 1, full, True, 548, 84.5),
        ("8B", "llama-8b", fsdp(shard=8, tensor=8), 8192, 12, 1, selective, False, 4378, None),
        ("70B", "llama-70b", fsdp(shard=32, tensor=8), 8192, 16, 1, full, False, 597, None),
        ("70B fp8", "llama-70b", fsdp(shard=32, tensor=8), 8192, 16, 1, full, True, 829, 71.9),
    ]
    result: list[Published] = []
    for name, preset, layout, length, rows_each, count, mode, fp8, speed, memory in rows:
        gpus = layout.world_size
        of = TrainingSetup(
            model=MODEL_PRESETS[preset],
            layout=layout,
            sequence_length=length,
            micro_batch=rows_each,
            micro_batches=count,
            recompute=mode,
            fp8=fp8,
            software=TORCHTITAN,
        )
        result.append(
            Published(
                name=f"{name}, {gpus} GPUs, {layout}, sequences of {length}",
                setup=of,
                cluster=cluster_of(
                    GPU_MODELS["H100-96GB"], gpus=gpus, network=LINKS["infiniband-ndr"]
                ),
                seconds=of.global_tokens / gpus / speed,
                memory_gib=memory,
            )
        )
    return result


TABLES: dict[str, Callable[[], Sequence[Published]]] = {
    "Megatron-LM 2021": megatron_2021,
    "Korthikanti 2022, times": korthikanti_times,
    "MT-NLG 530B": mt_nlg,
    "Llama 3 405B": llama_3,
    "torchtitan": torchtitan,
}


def table(rows: Sequence[Published]) -> str:
    """In Markdown; with the error after the first row has set the scale of a code base."""
    memory = any(row.memory_gib for row in rows)
    lines = ["| run | measured | predicted | error | anchored |" + (" GiB | predicted |" * memory)]
    lines.append("|---|---|---|---|---|" + "---|---|" * memory)
    scale = rows[0].seconds / rows[0].predicted
    for row in rows:
        anchored = row.predicted * scale / row.seconds - 1
        cells = [
            row.name,
            f"{row.seconds:.2f} s",
            f"{row.predicted:.2f} s",
            f"{100 * row.error:+.1f} %",
            "(anchor)" if row is rows[0] else f"{100 * anchored:+.1f} %",
        ]
        if memory:
            measured = "" if row.memory_gib is None else f"{row.memory_gib:.1f}"
            cells += [measured, f"{row.predicted_gib:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def activations_table() -> str:
    """In Markdown."""
    lines = ["| run | GiB published | GiB predicted | error |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {measured:.1f} | {size:.1f} | {100 * (size / measured - 1):+.1f} % |"
        for name, measured, size in korthikanti_activations()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    for title, rows in TABLES.items():
        print(f"{title}\n\n{table(rows())}\n")
    print(f"Korthikanti 2022, activations\n\n{activations_table()}")
