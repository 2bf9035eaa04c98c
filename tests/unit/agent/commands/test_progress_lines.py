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
        ("iter 7: loss nan, time 1.00ms, mfu -100.00%", ProgressLine(step=7, not_finite="nan")),
        (TORCHTITAN, ProgressLine(step=10, loss=7.12345, tokens_per_second_of_a_rank=1234.0)),
        (MEGATRON, ProgressLine(step=10, total_steps=100, loss=7.12)),
        (LIGHTNING, ProgressLine(step=550, loss=0.125)),
    ],
    ids=["nanoGPT", "a loss that is none", "torchtitan", "Megatron-LM", "Lightning"],
)
def test_a_line_of_a_known_program_says_its_step(line: str, shown: ProgressLine) -> None:
    assert ProgressReader().read(line) == shown


@pytest.mark.parametrize(
    ("line", "step", "total", "loss", "rate"),
    [
        # docs/running.md, and trainer/drumline_trainer/metrics/reporter.py
        ("step 12 loss 10.84", 12, 0, 10.84, None),
        ("step 10/120  loss 4.267", 10, 120, 4.267, None),
        ("step 40/200  loss 2.613  grad 0.810  18.2k tok/s  eta 0:42", 40, 200, 2.613, 18_200.0),
        ("step 1/3 loss 0.082533", 1, 3, 0.082533, None),
        ("[rank 0] Step: 7, loss: 1e-3, lr: 0.1", 7, 0, 0.001, None),
        ("[2026-01-02 03:04:05] step=9 loss=2.5 grad=1", 9, 0, 2.5, None),
        ("Iteration 3 | train loss = 1.5 | val loss = 9", 3, 0, 1.5, None),
        ("step 250: train loss 1.9, val loss 2.0", 250, 0, 1.9, None),
        ("step 5 val loss 3.0 loss 2.0", 5, 0, 2.0, None),
        ("step 1,200/5,000 loss 2.5", 1200, 5000, 2.5, None),
        ("INFO:root:step 12 loss 2.5", 12, 0, 2.5, None),
        ("2026-01-02 03:04:05,678 INFO Step 12, loss 2.5", 12, 0, 2.5, None),
        ("2026-01-02 03:04:05,678 - root - INFO - step 12 loss 2.5", 12, 0, 2.5, None),
        ("01/02/2026 03:04:05 - INFO - __main__ - step 12 loss 2.5", 12, 0, 2.5, None),
        ("[rank 0] 2026-01-02T03:04:05.678Z INFO step 12 loss 2.5", 12, 0, 2.5, None),
    ],
)
def test_a_line_with_a_step_and_a_loss_is_recognized(
    line: str, step: int, total: int, loss: float, rate: float | None
) -> None:
    shown = ProgressLine(step=step, total_steps=total, loss=loss, tokens_per_second=rate)
    assert ProgressReader().read(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "step 12",
        "step 3.5 loss 2",
        "checkpoint of step 12: 1 MB written in 0.03 s",
        "restored step 130 (96dc47b96abc)",
        "stepped 12 loss 3",
        "step 12 val loss 3.0",
        "step 12 eval: loss 3.0",
        "step 12 | validation | loss 3.0",
        "[eval] step 12 loss 3.0",
        "the loss of step 12 is 3",
        "step 12 lossless 3",
        "step 12 loss is high",
    ],
)
def test_a_sentence_about_steps_is_no_progress(line: str) -> None:
    assert ProgressReader().read(line) is None


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("step 12 loss nan", "nan"),
        ("step 12 loss NaN", "nan"),
        ("step 12/20 loss: -inf", "-inf"),
        (TORCHTITAN.replace("7.12345", "nan"), "nan"),
        (MEGATRON.replace("7.120000E+00", "nan"), "nan"),
        (LIGHTNING.replace("0.125", "nan"), "nan"),
    ],
)
def test_a_loss_that_is_no_number_is_kept_as_such(line: str, printed: str) -> None:
    shown = ProgressReader().read(line)
    assert shown is not None
    assert (shown.loss, shown.not_finite) == (None, printed)


@pytest.mark.parametrize("end", [", 'grad_norm': nan}", "}"])
def test_hugging_faces_nan_is_noticed(end: str) -> None:
    reader = ProgressReader()
    reader.read(" 10%|#         | 50/500 [00:12<01:50,  4.08it/s]")
    shown = reader.read("{'loss': nan" + end)
    assert shown is not None
    assert shown.not_finite == "nan"


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
        "{'loss': 2.5, 'epoch': 0.1}",
        "iter 100 of the reader",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert ProgressReader().read(line) is None


@pytest.mark.parametrize(
    "line", ["step: " * 5000, "Epoch 1:" + "| 1/" * 5000, "iteration 1/" * 9, "1:" * 600]
)
def test_a_long_line_is_cut_before_it_is_read(line: str) -> None:
    assert ProgressReader().read(line) is None
