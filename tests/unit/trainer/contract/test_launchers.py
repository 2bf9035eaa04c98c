"""Commands in the forms in which people write them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_contract import launcher_of, starts_ranks

LAUNCHES = """
torchrun train.py
/opt/conda/bin/torchrun --nproc-per-node 2 train.py
python3 -m torch.distributed.run train.py
python -u -m torch.distributed.launch train.py
python -um torch.distributed.run train.py
python -mtorch.distributed.run train.py
python3.11 -X faulthandler -W ignore -m accelerate.commands.launch train.py
python /opt/venv/bin/torchrun train.py
python /usr/lib/python3/torch/distributed/run.py train.py
accelerate launch train.py
deepspeed train.py
mpirun -np 8 python train.py
env A=1 B=2 torchrun train.py
env -u A -i -- torchrun train.py
env -S 'A=1 torchrun' train.py
A=1 torchrun train.py
nice -n 5 torchrun train.py
numactl --cpunodebind=0 -m 0 torchrun train.py
taskset -c 0-7 torchrun train.py
timeout -k 5 1h torchrun train.py
nohup torchrun train.py
stdbuf -oL torchrun train.py
uv run torchrun train.py
uv run --with numpy python -m torch.distributed.run train.py
poetry run torchrun train.py
conda run -n env --no-capture-output torchrun train.py
nsys profile -o out torchrun train.py
bash -c 'torchrun train.py'
bash -lc 'exec env A=1 torchrun train.py'
sh -ec 'nice torchrun train.py'
env A=1 nice uv run nohup torchrun train.py
"""
PLAIN = """
python train.py
python3 -u train.py torchrun
python -m package.train
python -c 'import torchrun'
./train --launcher torchrun
env A=1 python torchrun_helper.py
uv run train.py
bash -c 'python train.py'
nice -n 5 python train.py
timeout 1h python -m pytest
"""
UNKNOWN = """
bash run.sh
sh -x run.sh torchrun
bash -c 'cd /code && torchrun train.py'
bash -c 'python a.py; python b.py'
bash
./go.sh
env A=1 scripts/go.bash --lr 1
"""


def lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line]


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        *((line, True) for line in lines(LAUNCHES)),
        *((line, False) for line in lines(PLAIN)),
    ],
)
def test_a_launcher_is_found_wherever_it_stands(line: str, starts: bool) -> None:
    assert starts_ranks(shlex.split(line)) is starts


@pytest.mark.parametrize("line", lines(UNKNOWN))
def test_a_script_of_a_shell_may_do_anything(line: str) -> None:
    assert starts_ranks(shlex.split(line)) is None


def test_the_launcher_is_named() -> None:
    assert launcher_of(["env", "A=1", "/bin/torchrun", "a.py"]) == "torchrun"
    assert launcher_of(["python", "-m", "torch.distributed.run"]) == "torch.distributed.run"


WORDS = st.sampled_from(
    ["env", "A=1", "-u", "--", "-c", "-S", "bash", "nice", "python", "-m", "timeout", "uv", "'"]
)


@given(st.lists(WORDS, max_size=40))
def test_any_words_have_an_answer(command: list[str]) -> None:
    assert starts_ranks(command) in (True, False, None)
