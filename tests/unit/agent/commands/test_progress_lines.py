"""Lines as the programs print them."""

from __future__ import annotations

import pytest

from drumline_agent.commands.progress_lines import ProgressLine, ProgressReader

TORCHTITAN = (
    "[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.12345  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.2000  \x1b[38;2;54;234;195mmemory: 10.00GiB(12.50%)  "
    "\x1b[34mtps: 1,234  \x1b[36mtflops: 12.30  \x1b[35mmfu: 4.50%\x1b[39m"
)
MEGATRON = (
    " [2026-01-02 03:04:05] iteration       10/     100 | consumed samples:          160 |"
    " elapsed time per iteration (ms): 1234.5 | learning rate: 1.000000E-04 |"
    " global batch size:    16 | lm loss: 7.120000E+00 | loss scale: 1.0 |"
)
LIGHTNING = "Epoch 1:  10%|█         | 50/500 [00:01<00:10, 45.00it/s, v_num=0, train_loss=0.125]"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "iter 100: loss 2.3456, time 123.45ms, mfu 12.34%",
            ProgressLine(step=100, loss=2.3456),
        ),
        ("iter 7: loss nan, time 1.00ms, mfu -100.00%", ProgressLine(step=7)),
        (TORCHTITAN, ProgressLine(step=10, loss=7.12345, tokens_per_second_of_a_rank=1234.0)),
        (MEGATRON, ProgressLine(step=10, total_steps=100, loss=7.12)),
        (LIGHTNING, ProgressLine(step=550, loss=0.125)),
    ],
    ids=["nanoGPT", "a loss that is none", "torchtitan", "Megatron-LM", "Lightning"],
)
def test_a_line_of_a_known_program_says_its_step(line: str, shown: ProgressLine) -> None:
    assert ProgressReader().read(line) == shown


def test_hugging_faces_step_is_in_the_bar_and_its_loss_after_it() -> None:
    reader = ProgressReader()
    lines = [
        "Map: 100%|██████████| 1000/1000 [00:00<00:00, 9.1kit/s]",
        " 10%|█         | 50/500 [00:12<01:50,  4.08it/s]",
        "{'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.1}",
        " 10%|█         | 52/500 [00:12<01:50,  4.08it/s]",
        " 50%|█████     | 10/20 [00:12<01:50,  4.08it/s]",
        "{'eval_loss': 9.5, 'eval_runtime': 1.0, 'epoch': 0.1}",
        " 20%|██        | 100/500 [00:12<01:50,  4.08it/s]",
        "{'loss': '2.25', 'grad_norm': '1.2', 'learning_rate': '4.9e-05', 'epoch': '0.2'}",
    ]
    shown = [reader.read(line) for line in lines]
    assert [(each.step, each.total_steps, each.loss) for each in shown if each] == [
        (50, 500, 2.5),
        (52, 500, 2.5),
        (100, 500, 2.5),
        (100, 500, 2.25),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "validate step: 10  loss:  7.12345  memory: 10.00GiB(12.50%)  tps: 1,234",
        "step 2000: train loss 1.9, val loss 2.0",
        "{'loss': 2.5, 'epoch': 0.1}",
        "iter 100 of the reader",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert ProgressReader().read(line) is None


@pytest.mark.parametrize("line", ["step: " * 5000, "Epoch 1:" + "| 1/" * 5000, "iteration 1/" * 9])
def test_a_long_line_is_cut_before_it_is_read(line: str) -> None:
    assert ProgressReader().read(line) is None
