"""What a person wants to hear of two successive states of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

FINISHED = ("Succeeded", "Failed")


def news(before: Json, after: Json, *, racks: Mapping[str, str]) -> list[str]:
    """Sentences about what changed from one `status` to the next.

    Args:
        before: the earlier status; empty for a job not seen yet.
        after: the later status.
        racks: the rack of each node, by the node's name.
    """
    said: list[str] = []
    if after.get("assignment") and after.get("generation") != before.get("generation"):
        said.append(f"placed: {placement(after, racks=racks)}")
    checkpoint = after.get("checkpoint")
    if checkpoint and checkpoint != before.get("checkpoint"):
        said.append(
            f"checkpoint of step {checkpoint['step']} committed ({checkpoint['digest'][:12]})"
        )
    if _summary(after) != _summary(before):
        said.append(": ".join(part for part in _summary(after) if part))
    incident = after.get("incident")
    if incident and incident not in (before.get("incident"), after.get("message")):
        said.append(f"incident: {incident}")
    return said


def placement(status: Json, *, racks: Mapping[str, str]) -> str:
    """Nodes and racks of a job that was placed: `node-0, node-1 in rack-0`."""
    names = nodes(status)
    where = sorted({racks[name] for name in names if name in racks})
    return f"{', '.join(names)}" + (f" in {', '.join(where)}" if where else "")


def nodes(status: Json) -> list[str]:
    """Full node names by pod index."""
    assignment = status.get("assignment") or {"nodes": []}
    return [assignment.get("prefix", "") + rest for rest in assignment["nodes"]]


def glance(name: str, status: Json) -> str:
    """A job in a few words, for the live line."""
    phase = status.get("phase", "new")
    if phase == "Running" and status.get("totalSteps"):
        return f"{name}: step {status['step']}/{status['totalSteps']} loss {status.get('loss')}"
    reason = status.get("reason")
    return f"{name}: {phase}" + (f" ({reason})" if reason and phase not in FINISHED else "")


def log_line(line: str) -> str | None:
    """What rank 0 tells people in this line of its pod's log, if anything.

    Other ranks, the agent's JSON events and the libraries' own warnings are not for the show.
    """
    text = line.removeprefix("[rank 0] ").rstrip()
    return None if text == line.rstrip() or text.startswith("[W") else text


def _summary(status: Json) -> tuple[str, str]:
    phase, reason = status.get("phase") or "", status.get("reason") or ""
    words = phase if reason in ("", "Training", "Completed") else f"{phase}, {reason}"
    return words, status.get("message") or ""
