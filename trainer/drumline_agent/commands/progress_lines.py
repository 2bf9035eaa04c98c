"""Steps, losses and rates out of the lines that well-known training programs print; pure.

Nothing has to be said about the program: the formats differ enough to be told apart.

    nanoGPT        iter 100: loss 2.3456, time 123.45ms, mfu 12.34%
    torchtitan     step: 10  loss: 7.12345  grad_norm: 1.2  memory: 10.0GiB(12%)  tps: 1,234 ...
    Megatron-LM    iteration 10/ 100 | consumed samples: 160 | ... | lm loss: 7.12E+00 | ...
    Lightning      Epoch 1:  10%|#  | 50/500 [00:01<00:10, 45.0it/s, v_num=0, train_loss=0.12]
    Hugging Face   10%|#  | 50/500 [00:12<01:50, 4.1it/s]  and then  {'loss': 2.34, 'epoch': 0.1}
    drumline       step 40/200  loss 2.613  grad 0.810  18.2k tok/s  eta 0:42
    plain          step 12 loss 10.84       Step: 12, loss = 10.84       [rank 0] step=12 loss=nan
                   INFO:root:step 12 loss 10.84        2026-01-02 03:04:05,678 - INFO - step 12 ...

`not_finite` keeps a loss that is nan or inf.

A line is cut to MAX_CHARS before it is looked at, and no expression below repeats a repetition.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 1024
MAX_STEP: Final = 1 << 53
COLOR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_NUMBER = r"[-+]?\d[\d,]{0,20}\.?\d{0,20}(?:[eE][-+]?\d{1,3})?"
_NANO_GPT = re.compile(rf"^iter (?P<step>\d{{1,16}}): loss (?P<loss>{_NUMBER}|nan|-?inf)")
_TORCHTITAN = re.compile(
    rf"(?P<validate>validate )?\bstep: {{1,8}}(?P<step>\d{{1,16}}) {{1,8}}loss: {{1,8}}"
    rf"(?P<loss>{_NUMBER}|nan|-?inf)"
)
_TORCHTITAN_RATE = re.compile(rf"\btps: {{1,8}}(?P<rate>{_NUMBER})")
_MEGATRON = re.compile(r"\biteration {1,8}(?P<step>\d{1,16})/ {0,8}(?P<total>\d{1,16}) \|")
_MEGATRON_LOSS = re.compile(rf"\| (?:lm )?loss: (?P<loss>{_NUMBER}|nan|-?inf) \|")
_LIGHTNING = re.compile(
    r"^Epoch (?P<epoch>\d{1,8}):.{0,256}\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) \["
)
_LIGHTNING_LOSS = re.compile(rf"\b(?:train_)?loss(?:_step)?=(?P<loss>{_NUMBER}|nan|-?inf)")
_BAR = re.compile(r"^ {0,3}\d{1,3}%\|.{0,256}\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) \[")
_HUGGING_FACE = re.compile(rf"^\{{'loss': '?(?P<loss>{_NUMBER}|nan|-?inf)'?[,}}]")
_LOGGER = (
    r"(?:\[[^\]]{0,64}\]|\d{2,4}[/-]\d\d[/-]\d{2,4}T?|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"
    r"|(?:[\w.]{1,64} - )?(?:DEBUG|INFO|WARNING)(?:(?::| - )[\w.]{1,64}(?=:| - ))?)[ :|-]{0,8}"
)
"""A part of what a logger prints before its message: brackets, date, time, or level and name."""
_COUNT = r"\d{1,3}(?:,\d{3}){1,4}|\d{1,16}"
_PLAIN = re.compile(
    rf"^\s{{0,8}}(?P<logger>(?:{_LOGGER}){{0,4}})(?:training |train )?(?:global )?"
    rf"(?:step|iteration|iter)[ :=#]{{1,4}}(?P<step>{_COUNT})"
    rf"(?: ?/ ?(?P<total>{_COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
_PLAIN_LOSS = re.compile(
    rf"(?:^|[\s,;|(])(?:train(?:ing)?[_ /])?loss[ :=]{{1,4}}(?P<loss>{_NUMBER}|nan|-?inf)\b",
    re.IGNORECASE,
)
_ANY_LOSS = re.compile(
    r"(?<!\w)(?:train(?:ing)?_)?loss['\"]?[ :=]{1,4}['\"]?(?:tensor\()?"
    rf"(?P<loss>{_NUMBER}|nan|-?inf)\b",
    re.IGNORECASE,
)
"""A loss in any format: a dictionary, JSON, a tensor, or `epoch 3, batch 20: loss nan`."""
_OTHER = r"\b(?:val|valid|validation|eval|evaluation|test)"
_OTHER_LOSS = re.compile(rf"{_OTHER}[ _/:|.-]{{1,3}}loss", re.IGNORECASE)
_OTHER_LOGGER = re.compile(rf"{_OTHER}\b", re.IGNORECASE)
_PLAIN_RATE = re.compile(r" (?P<rate>\d{1,12}(?:\.\d{1,6})?)(?P<scale>[kM]?) tok/s\b")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """Figures of the run in one line."""

    step: int
    """Finished optimizer steps."""
    total_steps: int = 0
    """0 where the line does not say it."""
    loss: float | None = None
    not_finite: str = ""
    """The loss as printed if it is nan or inf, otherwise empty."""
    tokens_per_second_of_a_rank: float | None = None
    tokens_per_second: float | None = None
    """Rate of all ranks together."""


def printed_loss(line: str) -> str:
    """Return the training loss in a line without a known step; empty without one."""
    match = _ANY_LOSS.search(_OTHER_LOSS.sub("", line[:MAX_CHARS]))
    return "" if match is None else match["loss"].lower()


class ProgressReader:
    """Reads the lines of one process in order; remembers a progress bar until its loss comes."""

    def __init__(self) -> None:
        self._bar: tuple[int, int] | None = None
        self._trained: int | None = None
        """Length of the training's progress bar: the bar for which a loss has been printed."""
        self._loss: str = ""

    def read(self, line: str) -> ProgressLine | None:
        """Return the figures in a line. None: the line has no known format."""
        text = COLOR.sub("", line[:MAX_CHARS])
        return (
            (self._bars(text) or _lightning(text) or _nano_gpt(text) or _torchtitan(text))
            or _megatron(text)
            or _plain(text)
        )

    def _bars(self, text: str) -> ProgressLine | None:
        """Read the step from the bar of Hugging Face's Trainer, the loss from the next line."""
        bar = _BAR.match(text)
        if bar is not None:
            self._bar = int(bar["step"]), int(bar["total"])
        else:
            logged = _HUGGING_FACE.match(text)
            if logged is None or self._bar is None:
                return None
            self._trained, self._loss = self._bar[1], logged["loss"]
        step, total = self._bar
        if total != self._trained:
            return None  # of an evaluation, or of a data set
        return _line(step=step, total_steps=total, loss=self._loss)


def _nano_gpt(text: str) -> ProgressLine | None:
    match = _NANO_GPT.match(text)
    return match and _line(step=_step(match["step"]), loss=match["loss"])


def _torchtitan(text: str) -> ProgressLine | None:
    match = _TORCHTITAN.search(text)
    if match is None or match["validate"]:
        return None
    rate = _TORCHTITAN_RATE.search(text, match.end())
    return _line(
        step=_step(match["step"]),
        loss=match["loss"],
        tokens_per_second_of_a_rank=None if rate is None else _number(rate["rate"]),
    )


def _megatron(text: str) -> ProgressLine | None:
    match = _MEGATRON.search(text)
    if match is None:
        return None
    loss = _MEGATRON_LOSS.search(text, match.end())
    return _line(
        step=_step(match["step"]),
        total_steps=_step(match["total"]),
        loss="" if loss is None else loss["loss"],
    )


def _lightning(text: str) -> ProgressLine | None:
    match = _LIGHTNING.match(text)
    if match is None:
        return None
    loss = _LIGHTNING_LOSS.search(text, match.end())
    return _line(
        step=_step(str(int(match["epoch"]) * int(match["total"]) + int(match["step"]))),
        loss="" if loss is None else loss["loss"],
    )


def _plain(text: str) -> ProgressLine | None:
    """Parse a line of the bundled trainer, or of a script that prints a step and a loss."""
    match = _PLAIN.match(text)
    if match is None or _OTHER_LOGGER.search(match["logger"]):
        return None
    rest = _OTHER_LOSS.sub("", text[match.end() :])
    loss, rate = _PLAIN_LOSS.search(rest), _PLAIN_RATE.search(rest)
    if loss is None and rate is None:
        return None
    return _line(
        step=_step(match["step"]),
        total_steps=_step(match["total"] or "0"),
        loss="" if loss is None else loss["loss"],
        tokens_per_second=None if rate is None else float(rate["rate"]) * _SCALES[rate["scale"]],
    )


def _line(
    *,
    step: int,
    total_steps: int = 0,
    loss: str,
    tokens_per_second_of_a_rank: float | None = None,
    tokens_per_second: float | None = None,
) -> ProgressLine:
    value = _number(loss) if loss else None
    return ProgressLine(
        step=step,
        total_steps=total_steps,
        loss=value,
        not_finite=loss.lower() if loss and value is None else "",
        tokens_per_second_of_a_rank=tokens_per_second_of_a_rank,
        tokens_per_second=tokens_per_second,
    )


def _step(text: str) -> int:
    return min(int(text.replace(",", "")), MAX_STEP)


def _number(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None
