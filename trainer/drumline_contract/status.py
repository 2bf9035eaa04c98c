"""Reports of agents: their status while they run, and the final report of a pod."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from drumline_contract import json_fields as read
from drumline_contract.incidents import MAX_CAUSE_CHARS, FaultClass, Incident
from drumline_contract.notices import NoticeAnswer, notice_answer
from drumline_contract.pause import Pause, optional_pause
from drumline_contract.prompt_answers import MAX_ANSWERS_CHARS
from drumline_contract.rank_compute import MAX_COMPUTE_CHARS
from drumline_contract.step_parts import StepPartSeconds, parse_step_parts
from drumline_contract.step_series import MAX_SERIES_CHARS

MAX_FINAL_REPORT_BYTES: Final = 4096
"""The kubelet keeps this much of a termination message."""
MAX_STATUS_BYTES: Final = 64 * 1024
MAX_INCIDENTS: Final = 32
MAX_SILENT: Final = 256
MAX_SLOW: Final = 8
MAX_LAYOUT_CHARS: Final = 256
MAX_WAIT_SECONDS: Final = 30.0
"""Longest that an agent holds a status request open."""


def most_slow(members: int) -> int:
    """Return how many members of a gang can count as slow, at least one. More mean a slow job."""
    # A quarter of the gang: with more slow members the median itself is slow.
    return max(1, members // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentMember:
    """A member whose heartbeats are missing."""

    index: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMember:
    """A member whose ranks compute more slowly than those of the others that have the same work."""

    index: int
    percent: int
    """Compute time above the median in percent, as a mean over the last few steps."""
    steps: int
    """Since when, without a break."""


class AgentPhase(StrEnum):
    """Phase of an agent in its generation."""

    WAITING = "waiting"
    """Ready, no record yet."""
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class RemarkKind(StrEnum):
    """Remark about a gang that trains or trained. The first kind that applies is reported."""

    HELD = "Held"
    """It has failed, and its pods stay for a while before they end."""
    RANKS_ENDED = "RanksEnded"
    """Some ranks of a command have ended with exit code 0, and others continue."""
    LOSS_NOT_FINITE = "LossNotFinite"
    """The losses that a command prints are nan or inf."""
    PROGRESS_UNREADABLE = "ProgressUnreadable"
    """The patterns of a template do not match what its program prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """It changes nothing of what the agents or the operator do for the gang's training."""

    kind: RemarkKind
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of training. `step` counts finished optimizer steps."""

    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    checkpoint_step: int | None = None
    checkpoint_digest: str = ""
    """Digest of the newest committed checkpoint's manifest."""
    layout: str = ""
    """The layout of the ranks in one line. Empty: the agent does not report it."""
    predicted_tokens_per_second: float | None = None
    """Prediction of the planner for these devices."""
    step_parts: tuple[StepPartSeconds, ...] = ()
    """Step parts of the lowest rank. Empty until some steps were measured, or without a prediction.
    """
    seconds_left: float | None = None
    """Until the last step ends, at the pace of this attempt; None while that is not known."""
    series: str = ""
    """The series of this attempt (`step_series`). It is decoded only when it is needed."""
    compute_by_rank: str = ""
    """The compute times of this attempt (`rank_compute`). Decoded only when needed. Empty while
    ranks are not compared."""
    answers: str = ""
    """The continued prompts of the newest evaluation (`prompt_answers`), or empty."""

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Progress:
        """Check every field of a decoded JSON object. Raises ContractError."""
        return cls(
            step=read.integer(raw, "step"),
            total_steps=read.integer(raw, "total_steps"),
            loss=read.optional_number(raw, "loss"),
            tokens_per_second=read.optional_number(raw, "tokens_per_second"),
            checkpoint_step=read.optional_integer(raw, "checkpoint_step"),
            checkpoint_digest=read.text(raw, "checkpoint_digest"),
            # Texts from a pod are cut, not rejected: a long layout must not lose the progress.
            layout=read.text(raw, "layout")[:MAX_LAYOUT_CHARS],
            predicted_tokens_per_second=read.optional_number(raw, "predicted_tokens_per_second"),
            # Older agents do not send this field.
            step_parts=parse_step_parts(raw, "step_parts"),
            seconds_left=read.optional_number(raw, "seconds_left"),
            series=read.exact_text(raw, "series", limit=MAX_SERIES_CHARS),
            # Only the size is checked here, since decoding costs time for every status.
            compute_by_rank=read.exact_text(raw, "compute_by_rank", limit=MAX_COMPUTE_CHARS),
            answers=read.exact_text(raw, "answers", limit=MAX_ANSWERS_CHARS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """Answer of `GET /v1/status?since=VERSION&wait=SECONDS`.

    With `since` equal to the version the agent has, it answers when that changes, at the latest
    after `wait` (at most MAX_WAIT_SECONDS); without them at once.
    """

    job_uid: str
    pod_uid: str
    index: int
    generation: int
    attempt: int
    phase: AgentPhase
    progress: Progress
    version: int = 0
    """Rises whenever something changes that the operator waits for; see `since`."""
    silent: tuple[SilentMember, ...] = ()
    """Members whose heartbeats this agent misses."""
    slow: tuple[SlowMember, ...] = ()
    """Slow members, slowest first, at most MAX_SLOW. Empty if more are slow than `most_slow`
    allows. An older operator ignores this field."""
    incidents: tuple[Incident, ...] = ()
    """The newest of this generation and the last one's, oldest first; at most MAX_INCIDENTS."""
    notice: NoticeAnswer | None = None
    waiting_for: str = ""
    """Why the gang waits instead of training, a sentence; empty while it trains or recovers. An
    operator that does not know the field goes without."""
    acknowledges_saves: bool = False
    """The program of a template answers notices: it has asked its client whether to save."""
    remark: Remark | None = None
    """None also where it is of a kind that this version does not know."""
    pause: Pause | None = None
    """Time for which no rank has shown work. None: the agent cannot tell, or the gang is starting.
    The version rises when the pause exceeds the usual one and when it ends."""

    def encode(self) -> bytes:
        """Return JSON of at most MAX_STATUS_BYTES: the oldest incidents are left out."""
        # Incidents are the only unbounded part. Dropping the oldest keeps the newest for the
        # operator.
        whole = asdict(self)
        while True:
            text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            # A lone surrogate cannot be encoded, so it is replaced.
            body = text.encode(errors="replace")
            if len(body) <= MAX_STATUS_BYTES or not whole["incidents"]:
                return body
            whole["incidents"] = whole["incidents"][1:]

    @classmethod
    def parse(cls, body: bytes) -> AgentStatus:
        """Read a status. Raises ContractError for anything malformed or oversized."""
        # The size is checked before the JSON is parsed.
        raw = read.json_object(body, MAX_STATUS_BYTES)
        return cls(
            job_uid=read.text(raw, "job_uid"),
            pod_uid=read.text(raw, "pod_uid"),
            index=read.integer(raw, "index"),
            generation=read.integer(raw, "generation"),
            attempt=read.integer(raw, "attempt"),
            phase=read.choice(raw, "phase", AgentPhase),
            progress=Progress.parse(read.nested(raw, "progress")),
            # A status without a version is from an older agent.
            version=read.integer(raw, "version") if "version" in raw else 0,
            silent=tuple(_silence(item) for item in read.objects(raw, "silent", limit=MAX_SILENT)),
            slow=tuple(_slow(item) for item in read.objects(raw, "slow", limit=MAX_SLOW)),
            # The list is bounded by the reader, so a hostile pod cannot grow the operator's memory.
            incidents=tuple(
                Incident.parse(item) for item in read.objects(raw, "incidents", limit=MAX_INCIDENTS)
            ),
            notice=notice_answer(raw),
            waiting_for=read.text(raw, "waiting_for")[:MAX_CAUSE_CHARS],
            # Fields of newer agents default, so that operator and agents can be upgraded in any
            # order.
            acknowledges_saves=(
                read.flag(raw, "acknowledges_saves") if "acknowledges_saves" in raw else False
            ),
            remark=_remark(raw),
            pause=optional_pause(raw),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """A pod's termination message: its progress and, if it failed, the reason."""

    progress: Progress
    error: str = ""
    """Rank and last line of the error, cut to 1,024 characters; empty on success."""
    failed_rank: int | None = None
    fault_class: FaultClass | None = None
    """Class of that error, where the agent could not recover from it; None on success."""
    held_seconds: float = 0.0
    """Seconds for which the pods were kept after the error, so that the user could debug them."""

    def encode(self) -> bytes:
        """Return JSON of at most MAX_FINAL_REPORT_BYTES."""
        whole: dict[str, Any] = {**asdict(self), "error": self.error[:1024]}
        body = _compact(whole)
        # Drop the large optional texts first. Progress and error matter most.
        for name in ("answers", "compute_by_rank", "series"):
            if len(body) > MAX_FINAL_REPORT_BYTES:
                whole["progress"][name] = ""
                body = _compact(whole)
        if len(body) > MAX_FINAL_REPORT_BYTES:  # non-ASCII text grows by escaping
            whole["error"] = self.error[:128]
            body = _compact(whole)
        return body

    @classmethod
    def parse(cls, body: bytes) -> FinalReport:
        """Read a termination message. Raises ContractError if it is not one of ours."""
        raw = read.json_object(body, MAX_FINAL_REPORT_BYTES)
        return cls(
            progress=Progress.parse(read.nested(raw, "progress")),
            error=read.text(raw, "error")[:1024],
            failed_rank=read.optional_integer(raw, "failed_rank"),
            fault_class=(
                None
                if raw.get("fault_class") is None
                else read.choice(raw, "fault_class", FaultClass)
            ),
            held_seconds=read.optional_number(raw, "held_seconds") or 0.0,
        )


def _compact(whole: dict[str, Any]) -> bytes:
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def _remark(raw: dict[str, Any]) -> Remark | None:
    fields = read.optional_nested(raw, "remark")
    if fields is None:
        return None
    sentence = read.text(fields, "sentence")[:MAX_CAUSE_CHARS]
    # A kind of a newer version is unknown here and is left out.
    kind = next((kind for kind in RemarkKind if kind == read.text(fields, "kind")), None)
    return None if kind is None else Remark(kind=kind, sentence=sentence)


def _slow(raw: dict[str, Any]) -> SlowMember:
    return SlowMember(
        index=read.integer(raw, "index"),
        percent=read.integer(raw, "percent"),
        steps=read.integer(raw, "steps"),
    )


def _silence(raw: dict[str, Any]) -> SilentMember:
    return SilentMember(index=read.integer(raw, "index"), seconds=read.number(raw, "seconds"))
