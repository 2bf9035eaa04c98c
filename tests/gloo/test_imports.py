"""What a run imports: torch alone takes seconds, and its compiler and wrappers as long again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig

ROOT = Path(__file__).parents[2]
HEAVY = (
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
)


def train_and_look(placement: Placement, *, layout: str, folder: str) -> int:
    """The whole of a rank; leaves behind which heavy modules it has after its steps."""
    from drumline_trainer.rank import rank_main  # noqa: PLC0415 - this module is free of torch

    config = TrainerConfig.from_dict(
        {
            "model": {"layers": 1, "hidden_size": 16, "ffn_size": 16, "heads": 2, "kv_heads": 2},
            "data": {"sequence_length": 16, "source": folder},
            "parallelism": {"data_parallel": "ddp", "tensor": 2 if layout == "tp" else 1},
            "steps": 2,
            "global_batch_size": 2,
        }
    )
    code = rank_main(config, placement=placement)
    results = [name for name in HEAVY if name in sys.modules]
    Path(folder, f"{layout}-{placement.rank}.json").write_text(json.dumps(results))
    return code


def main(folder: str) -> None:
    """Train in both layouts."""
    from drumline_trainer.launch.local import fork_ranks  # noqa: PLC0415 - this module is free of torch

    for layout in ("ddp", "tp"):
        assert fork_ranks(partial(train_and_look, layout=layout, folder=folder), ranks=2) == 0


@pytest.mark.extended(keep=4, of="runs of ranks")
def test_ddp_and_tensor_parallel_runs_do_without_torchs_compiler_and_wrappers(
    tmp_path: Path,
) -> None:
    (tmp_path / "text.py").write_text("x = 1\n" * 200)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "operator", ROOT / "trainer")))
    subprocess.run(
        [sys.executable, "-m", "tests.gloo.test_imports", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert results == {f"{layout}-{rank}": [] for layout in ("ddp", "tp") for rank in (0, 1)}


if __name__ == "__main__":
    main(sys.argv[1])
