from __future__ import annotations

from pathlib import Path

import pytest

from drumline_trainer.collectives.options import BenchOptions
from drumline_trainer.config import ConfigError, DataParallel, ParallelismConfig


def test_the_command_line_is_a_layout_and_sizes(tmp_path: Path) -> None:
    words = "--ranks 4 --layout tensor=2 --layout data_parallel=ddp --smallest 100 --largest 2000"
    options = BenchOptions.parse([*words.split(), "--json", str(tmp_path / "figures")])
    assert options == BenchOptions(
        ranks=4,
        parallelism=ParallelismConfig(tensor=2, data_parallel=DataParallel.DDP),
        sizes=(100, 400, 1600),
        json_file=tmp_path / "figures",
    )
    assert str(options.layout(world_size=4)) == "DDP2 · TP2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--layout tensor", "--layout tensor: must be key=value"),
        ("--layout tensors=2", "layout.tensors: unknown field; did you mean 'tensor'"),
        ("--layout tensor=two", "layout.tensor: must be int"),
        ("--smallest 8 --largest 4", "--smallest: must be at least 1 and at most --largest"),
        ("--repeats 0", "--repeats: must be at least 1"),
        ("--json /absent/figures", "--json: /absent is not a folder"),
    ],
)
def test_a_bad_command_line_says_what_is_wrong(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchOptions.parse(words.split())
