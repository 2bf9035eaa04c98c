"""Steps, losses and rates out of the lines that well-known training programs print; pure.

Nothing has to be said about the program: the formats differ enough to be told apart.

    nanoGPT        iter 100: loss 2.3456, time 123.45ms, mfu 12.34%
    torchtitan     step: 10  loss: 7.12345  grad_norm: 1.2  memory: 10.0GiB(12%)  tps: 1,234 ...
    Megatron-LM    iteration 10/ 100 | consumed samples: 160 | ... | lm loss: 7.12E+00 | ...
    Lightning      Epoch 1:  10%|#  | 50/500 [00:01<00:10, 45.0it/s, v_num=0, train_loss=0.12]
    Hugging Face   10%|#  | 50/500 [00:12<01:50, 4.1it/s]  and then  {'loss': 2.34, 'epoch': 0.1}

A line is cut to MAX_CHARS before it is looked at, and no expression below repeats a repetition.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 1024
MAX_STEP: Final = 1 << 53
_COLOR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_NUMBER = r"[-+]?\d[\d,]{0,20}\.?\d{0,20}(?:[eE][-+]?\d{1,3})?"
_NANO_GPT = re.compile(rf"^iter (?P<step>\d{{1,16}}): loss (?P<loss>{_NUMBER}|nan)")
_TORCHTITAN = re.compile(
    rf"(?P<validate>validate )?\bstep: {{1,8}}(?P<step>\d{{1,16}}) {{1,8}}loss: {{1,8}}"
    rf"(?P<loss>{_NUMBER}|nan)"
)
_TORCHTITAN_RATE = re.compile(rf"\btps: {{1,8}}(?P<rate>{_NUMBER})")
_MEGATRON = re.compile(r"\biteration {1,8}(?P<step>\d{1,16})/ {0,8}(?P<total>\d{1,16}) \|")
_MEGATRON_LOSS = re.compile(rf"\| (?:lm )?loss: (?P<loss>{_NUMBER}|nan) \|")
_LIGHTNING = re.compile(
    r"^Epoch (?P<epoch>\d{1,8}):.{0,256}\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) \["
)
_LIGHTNING_LOSS = re.compile(rf"\b(?:train_)?loss(?:_step)?=(?P<loss>{_NUMBER}|nan)")
_BAR = re.compile(r"^ {0,3}\d{1,3}%\|.{0,256}\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) \[")
_HUGGING_FACE = re.compile(rf"^\{{'loss': '?(?P<loss>{_NUMBER}|nan)'?, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """Figures of the run in one line."""

    step: int
    """Finished optimizer steps."""
    total_steps: int = 0
    """0 where the line does not say it."""
    loss: float | None = None
    tokens_per_second_of_a_rank: float | None = None
    tokens_per_second: float | None = None
    """Rate of all ranks together."""


class ProgressReader:
    """Reads the lines of one process in order; remembers a progress bar until its loss comes."""

    def __init__(self) -> None:
        self._bar: tuple[int, int] | None = None
        self._trained: int | None = None
        """Length of the progress bar that a loss has been printed for: the training's."""
        self._loss: float | None = None

    def read(self, line: str) -> ProgressLine | None:
        """Return the figures in a line. None: the line has no known format."""
        text = _COLOR.sub("", line[:MAX_CHARS])
        return (
            self._bars(text) or _lightning(text) or _nano_gpt(text) or _torchtitan(text)
        ) or _megatron(text)

    def _bars(self, text: str) -> ProgressLine | None:
        """Hugging Face's Trainer: the step is in the bar, the loss in the line after it."""
        bar = _BAR.match(text)
        if bar is not None:
            self._bar = int(bar["step"]), int(bar["total"])
        else:
            logged = _HUGGING_FACE.match(text)
            if logged is None or self._bar is None:
                return None
            self._trained, self._loss = self._bar[1], _number(logged["loss"])
        step, total = self._bar
        if total != self._trained:
            return None  # of an evaluation, or of a data set
        return ProgressLine(step=step, total_steps=total, loss=self._loss)


def _nano_gpt(text: str) -> ProgressLine | None:
    match = _NANO_GPT.match(text)
    return match and ProgressLine(step=_step(match["step"]), loss=_number(match["loss"]))


def _torchtitan(text: str) -> ProgressLine | None:
    match = _TORCHTITAN.search(text)
    if match is None or match["validate"]:
        return None
    rate = _TORCHTITAN_RATE.search(text, match.end())
    return ProgressLine(
        step=_step(match["step"]),
        loss=_number(match["loss"]),
        tokens_per_second_of_a_rank=None if rate is None else _number(rate["rate"]),
    )


def _megatron(text: str) -> ProgressLine | None:
    match = _MEGATRON.search(text)
    if match is None:
        return None
    loss = _MEGATRON_LOSS.search(text, match.end())
    return ProgressLine(
        step=_step(match["step"]),
        total_steps=_step(match["total"]),
        loss=None if loss is None else _number(loss["loss"]),
    )


def _lightning(text: str) -> ProgressLine | None:
    match = _LIGHTNING.match(text)
    if match is None:
        return None
    loss = _LIGHTNING_LOSS.search(text, match.end())
    return ProgressLine(
        step=_step(str(int(match["epoch"]) * int(match["total"]) + int(match["step"]))),
        loss=None if loss is None else _number(loss["loss"]),
    )


def _step(text: str) -> int:
    return min(int(text), MAX_STEP)


def _number(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None
