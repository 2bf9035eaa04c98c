"""Measured iterations from a CSV file, as setups on clusters.

Columns as in data/vtrain_a100.csv; the optional ones are `OPTIONAL`, read where they are there.
Nothing of a measurement reaches its setup: a row's time and memory are kept beside it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

from drumline_contract.config import (
    ConfigError,
    DataParallel,
    Family,
    MemoryConfig,
    ModelConfig,
    Recompute,
    Schedule,
)
from drumline_contract.config.bounds import nearest_divisors
from drumline_contract.hardware import GpuCluster, Link, named_gpu, unknown
from drumline_contract.layout import Layout
from drumline_planner.memory import memory_bill
from drumline_planner.network import cluster_of
from drumline_planner.setup import MEGATRON, MEGATRON_CORE, SOFTWARE, Software, TrainingSetup

REQUIRED = (
    "gpus",
    "global_batch",
    "micro_batch",
    "hidden",
    "heads",
    "layers",
    "sequence",
    "tensor",
    "data",
    "pipeline",
)
OPTIONAL = {
    "params_billion": "name from the table; an unusual feed-forward size is looked up with it",
    "iteration_ms": "measured value; empty or OOM: it did not fit",
    "memory_gb": "measured value of the fullest rank, in 1e9 bytes",
    "gpu": "default A100-80GB",
    "vocabulary": "default 50304",
    "ffn": "default: 4 times hidden, or the size that params_billion implies",
    "kv_heads": "default heads",
    "family": "gpt2 or llama; default: gpt2; on GPUs other than A100: llama if ffn is given",
    "recompute": "none, selective or full; default: full; with megatron-core the lowest level"
    " that fits",
    "sequence_parallel": "true or false; default: the software's behavior",
    "stages_per_rank": "above 1: interleaved",
    "zero": "0, 1 or 3; default 0",
    "software": "default: megatron-2021 on A100, otherwise megatron-core",
    "network_gbps": "per GPU; default: 100 on A100, otherwise 400",
    "code_base": "rows with the same name share an anchor",
}
_MOST_BYTES = 1 << 24
_MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the file."""

    line: int
    setup: TrainingSetup
    cluster: GpuCluster
    code_base: str
    seconds: float | None
    """Measured seconds of a step. None: not measured, or the layout did not fit."""
    memory_bytes: float | None
    ran: bool
    """True if the layout fit in memory."""


def read_rows(text: str) -> list[Measured]:
    """Return the rows of a file.

    Raises:
        ConfigError: a column is missing, or a value is not usable. The message names the line.
    """
    if len(text) > _MOST_BYTES:
        raise ConfigError(
            f"the file has {len(text)} characters, which exceeds the maximum of {_MOST_BYTES}"
        )
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip() for name in reader.fieldnames or ()]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise ConfigError(f"the file lacks column {missing[0]}; it needs {', '.join(REQUIRED)}")
    strange = [name for name in names if name not in REQUIRED and name not in OPTIONAL]
    if strange:
        raise ConfigError(unknown("column", strange[0], (*REQUIRED, *OPTIONAL)))
    rows: list[Measured] = []
    for line, raw in enumerate(reader, start=2):
        if line > _MOST_ROWS:
            raise ConfigError(f"the file has more than {_MOST_ROWS} rows")
        if None in raw:
            raise ConfigError(f"line {line}: more cells than the {len(names)} columns")
        cells = {str(k).strip(): str(v or "").strip() for k, v in raw.items() if k is not None}
        try:
            rows.append(_measured(cells, line))
        except ConfigError as error:
            raise ConfigError(f"line {line}: {error}") from error
    if not rows:
        raise ConfigError("the file has no data rows")
    return rows


def _measured(cells: Mapping[str, str], line: int) -> Measured:
    # Phase 1: cluster. Missing cells take the usual machine of the GPU's generation.
    numbers = {name: _number(cells, name) for name in REQUIRED}
    gpu = named_gpu(cells.get("gpu") or "A100-80GB")
    ampere = gpu.name.startswith("A100")
    software = _software(cells, ampere=ampere)
    # Gbit/s to bytes per second.
    link = _positive(cells, "network_gbps", 100.0 if ampere else 400.0) / 8 * 1e9
    cluster = cluster_of(
        gpu, gpus=numbers["gpus"], network=Link(name="network", bandwidth=link, latency=8e-6)
    )
    # Phase 2: layout and batch must divide, as in the run that was measured.
    layout = _layout(cells, numbers, software)
    share = numbers["global_batch"] // layout.batch_ranks
    if share < numbers["micro_batch"] or numbers["global_batch"] % layout.batch_ranks:
        raise ConfigError(
            f"global_batch: {numbers['global_batch']} cannot be divided into micro-batches of"
            f" {numbers['micro_batch']} for {layout.batch_ranks} ranks"
        )
    # Phase 3: setup without any measured value.
    setup = TrainingSetup(
        model=_model(cells, numbers),
        layout=layout,
        sequence_length=numbers["sequence"],
        micro_batch=numbers["micro_batch"],
        micro_batches=-(-share // numbers["micro_batch"]),
        recompute=Recompute.FULL,
        software=software,
    )
    taken = cells.get("iteration_ms", "")
    # Phase 4: measured values. OOM in the time column means that it did not fit.
    seconds = None
    if taken and taken.upper() != "OOM":
        seconds = _positive(cells, "iteration_ms", 1.0) / 1000
    memory = _positive(cells, "memory_gb", 0.0) if cells.get("memory_gb") else 0.0
    return Measured(
        line=line,
        setup=_with_recompute(cells, setup, cluster),
        cluster=cluster,
        code_base=cells.get("code_base", "") or software.name,
        seconds=seconds,
        memory_bytes=memory * 1e9 or None,
        ran=seconds is not None or memory > 0,
    )


def _software(cells: Mapping[str, str], *, ampere: bool) -> Software:
    name = cells.get("software", "")
    if not name:
        return MEGATRON if ampere else MEGATRON_CORE
    if name not in SOFTWARE:
        raise ConfigError(unknown("software", name, SOFTWARE))
    return SOFTWARE[name]


def _layout(cells: Mapping[str, str], numbers: Mapping[str, int], software: Software) -> Layout:
    tensor, data, pipeline = (numbers[name] for name in ("tensor", "data", "pipeline"))
    # Product of the degrees: a typo here would score another layout.
    if tensor * data * pipeline != numbers["gpus"]:
        raise ConfigError(
            f"gpus: {numbers['gpus']} must be tensor {tensor} times data {data} times pipeline"
            f" {pipeline}, which is {tensor * data * pipeline}"
        )
    if numbers["layers"] < pipeline:
        raise ConfigError(f"pipeline: {pipeline} stages need at least as many layers")
    zero = cells.get("zero", "") or "0"
    kinds = {"0": DataParallel.DDP, "1": DataParallel.ZERO1, "3": DataParallel.FSDP}
    if zero not in kinds:
        raise ConfigError(f"zero: must be 0, 1 or 3, got {zero}")
    # Interleaving needs a pipeline.
    per_rank = int(_positive(cells, "stages_per_rank", 1.0)) if pipeline > 1 else 1
    sharded = kinds[zero] is DataParallel.FSDP
    # Megatron of 2021 had no sequence parallelism. The later code bases turn it on.
    by_position = cells.get("sequence_parallel", "") or str(software is not MEGATRON)
    return Layout(
        data_parallel=kinds[zero],
        replicate=1 if sharded else data,
        shard=data if sharded else 1,
        tensor=tensor,
        pipeline=pipeline,
        sequence_parallel=by_position.lower() in ("true", "1", "yes"),
        schedule=Schedule.INTERLEAVED if per_rank > 1 else Schedule.ONE_F_ONE_B,
        stages_per_rank=per_rank,
    )


def _model(cells: Mapping[str, str], numbers: Mapping[str, int]) -> ModelConfig:
    hidden, heads, layers = (numbers[name] for name in ("hidden", "heads", "layers"))
    if hidden % heads:
        raise ConfigError(
            f"heads: hidden {hidden} must be a multiple of {heads}; use"
            f" {nearest_divisors(heads, of=hidden)}"
        )
    family = _family(cells.get("family", "") or Family.GPT2.value)
    vocabulary = int(_positive(cells, "vocabulary", 50304.0))
    kv_heads = int(_positive(cells, "kv_heads", float(heads)))
    ffn = int(_positive(cells, "ffn", 4.0 * hidden))
    params = _positive(cells, "params_billion", 0.0) if cells.get("params_billion") else 0.0
    if params and not cells.get("ffn"):
        # a feed-forward that is not four times as wide shows in the number of weights
        products = 2 if family is Family.GPT2 else 3
        # The published size includes the true feed-forward width, so solve for it.
        rest = params * 1e9 - vocabulary * hidden
        attention = 2.0 * hidden * hidden * (1 + kv_heads / heads)
        implied = (rest / layers - attention) / (products * hidden)
        # Differences up to 15 % come from rounded names such as 7B.
        if implied > hidden and abs(implied / ffn - 1) > 0.15:
            ffn = round(implied)
    return ModelConfig(
        family=family,
        vocab_size=vocabulary,
        layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        heads=heads,
        kv_heads=kv_heads,
        max_positions=numbers["sequence"],
        dropout=0.1 if family is Family.GPT2 else 0.0,
    )


def _family(name: str) -> Family:
    families = {family.value: family for family in (Family.GPT2, Family.LLAMA)}
    if name not in families:
        raise ConfigError(unknown("family", name, families))
    return families[name]


def _with_recompute(
    cells: Mapping[str, str], setup: TrainingSetup, cluster: GpuCluster
) -> TrainingSetup:
    name = cells.get("recompute", "")
    modes = {mode.value: mode for mode in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)}
    if name and name not in modes:
        raise ConfigError(unknown("recompute", name, modes))
    if not name and setup.software is MEGATRON:
        return setup
    # An unnamed mode is the lowest that fits, as users choose it.
    wanted = [modes[name]] if name else list(modes.values())
    for mode in wanted:
        setup = replace(setup, recompute=mode, memory=MemoryConfig(recompute=mode))
        if memory_bill(setup, capacity=cluster.gpu.memory_bytes).fits:
            break
    return setup


def _number(cells: Mapping[str, str], name: str) -> int:
    value = _positive(cells, name, 0.0)
    if value != int(value):
        raise ConfigError(f"{name}: must be a whole number, got {cells.get(name)!r}")
    return int(value)


def _positive(cells: Mapping[str, str], name: str, default: float) -> float:
    text = cells.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        raise ConfigError(f"{name}: must be a number, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}: must be greater than 0, got {text or 'no value'}")
    return value
