"""Options of sbatch and srun, as both spell them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_cli.convert.model import ConversionError

_SHORT: Final = {
    "A": "account",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
    "a": "array",
}
# Options without a value. Otherwise the next word would be taken for their value.
_FLAGS: Final = frozenset(
    (
        "exclusive",
        "requeue",
        "no-requeue",
        "label",
        "l",
        "unbuffered",
        "u",
        "verbose",
        "v",
        "overlap",
        "exact",
        "contiguous",
        "no-container-mount-home",
        "container-mount-home",
        "container-remap-root",
        "container-writable",
        "K",
    )
)
"""Options without a value of their own, or with one behind `=` only."""
# Reasons for options that have no field, by long name.
_WHY_NOT: Final = {
    "output": "the pods have the logs: drumline logs JOB",
    "error": "the pods have the logs: drumline logs JOB",
    "open-mode": "the pods have the logs: drumline logs JOB",
    "label": "drumline logs starts each line with the index of its pod",
    "l": "drumline logs starts each line with the index of its pod",
    "array": "an array corresponds to a sweep: drumline run --sweep creates its TrainingJobs",
    "dependency": "list the jobs in spec.after, with their names in this cluster",
    "qos": "set spec.priorityClassName to a PriorityClass",
    "constraint": "set labels of the nodes in spec.nodeSelector",
    "nodelist": "set spec.nodeAffinity with kubernetes.io/hostname",
    "exclude": "set spec.nodeAffinity with kubernetes.io/hostname and NotIn",
    "exclusive": "a pod never shares its GPUs; request all GPUs of a node to use it alone",
    "requeue": "a preempted or interrupted job is always queued again",
    "no-requeue": "spec.recovery limits restarts",
    "signal": "set template.notice.signal, and template.terminationGracePeriodSeconds for its time",
    "container-mounts": "mount a claim: template.volumes and template.volumeMounts",
    "mail-type": "Drumline sends no mail",
    "mail-user": "Drumline sends no mail",
    "switches": "set spec.topology.required or preferred to a level of the GpuPool",
    "cpu-bind": "the kubelet's CPU manager binds CPUs",
    "mem-bind": "the kubelet's memory manager binds memory",
    "gpu-bind": "each rank has its own GPU",
    "mpi": "the agent starts ranks",
    "kill-on-bad-exit": "if a rank dies, all ranks restart",
    "K": "if a rank dies, all ranks restart",
    "mem": "not an amount of memory; set spec.resources.memory",
    "time": "without limit",
}


_GOES_TO: Final = {
    "nodes": "spec.nodes",
    "ntasks": "spec.template.launch",
    "ntasks-per-node": "spec.template.launch",
    "cpus-per-task": "spec.resources.cpu",
    "cpus-per-gpu": "spec.resources.cpu",
    "gres": "spec.gpusPerNode",
    "gpus": "spec.gpusPerNode",
    "gpus-per-node": "spec.gpusPerNode",
    "gpus-per-task": "spec.gpusPerNode",
}


@dataclass(slots=True, kw_only=True)
class SlurmOption:
    """An option as it was given, and whether a converter has used it."""

    name: str
    value: str
    line: int
    words: int
    read: bool = False

    @property
    def path(self) -> str:
        """Return the location for people."""
        dashes = "-" if len(self.name) == 1 else "--"
        return f"line {self.line}: {dashes}{self.name}"

    @property
    def goes_to(self) -> str:
        """Return the corresponding text of the TrainingJob."""
        return _GOES_TO.get(self.name, "spec")

    @property
    def why_not(self) -> str:
        """Why it is not in the TrainingJob."""
        return _WHY_NOT.get(self.name, "TrainingJobs have no such field")


def parse_options(
    words: Sequence[str], *, line: int, stop_at_command: bool = False
) -> Iterator[SlurmOption]:
    """Yield the options in order.

    Args:
        words: words of the line as a shell splits them.
        line: line of the script.
        stop_at_command: whether the first word that is not an option begins the command (srun).

    Raises:
        ConversionError: a word is not an option, or an option lacks its value.
    """
    at = 0
    while at < len(words):
        word = words[at]
        # The value may contain any text, even line breaks.
        long = re.fullmatch(r"--([A-Za-z][\w-]*)(?:=(.*))?", word, re.DOTALL)
        short = re.fullmatch(r"-([A-Za-z])=?(.*)", word, re.DOTALL)
        match = long or short
        # srun ends its options at the first other word. sbatch options never have one.
        if match is None:
            if stop_at_command:
                return
            raise ConversionError(path=f"line {line}", problem=f"{word}: not an option of sbatch")
        name = match[1] if long else _SHORT.get(match[1], match[1])
        # An alias that is common in scripts.
        if name == "tasks-per-node":
            name = "ntasks-per-node"
        value = match[2] or ""
        # `--option=` gives an empty value, which is not the same as no value.
        inline = bool(value) or (long is not None and match[2] is not None)
        taken = 1
        # The value is the next word, as for `-N 2`.
        if not inline and name not in _FLAGS:
            if at + 1 >= len(words):
                raise ConversionError(path=f"line {line}", problem=f"{word}: without a value")
            value, taken = words[at + 1], 2
        yield SlurmOption(name=name, value=value, line=line, words=taken)
        at += taken


def seconds_of(text: str, *, path: str) -> int | None:
    """Return a limit in minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S, or None if there is none.

    Raises:
        ConversionError: it is none of these.
    """
    # Slurm spells an unlimited time in several ways.
    if text.upper() in ("0", "UNLIMITED", "INFINITE"):
        return None
    parsed = re.fullmatch(
        r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,4}))?(?::([0-9]{1,2}))?", text
    )
    if parsed is None:
        raise ConversionError(path=path, problem=f"{text}: not a Slurm time such as 1-12:00:00")
    days, first, second, third = (int(part) if part else None for part in parsed.groups())
    # With days, the first number counts hours. Without days it counts minutes.
    if days is not None:
        return days * 86_400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)
