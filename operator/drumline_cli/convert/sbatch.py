"""A script for Slurm's sbatch, whose one srun (or one command, on one node) becomes the job's.

https://slurm.schedmd.com/sbatch.html; --container-... are those of pyxis.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from drumline_api.variables import RESERVED_ENV
from drumline_cli.convert.assembly import finished
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, ConversionError, Json, Notes, Wanted
from drumline_cli.convert.pods import launch_fields
from drumline_cli.convert.slurm_options import SlurmOption, parse_options, seconds_of

# Only plain assignments are read. A script is never run, so no shell expands a value.
_EXPORT: Final = re.compile(r"export\s+([A-Za-z_]\w*)=(.*)")
_IS_LITERAL: Final = re.compile(r"[^$`]*")
_QUIET: Final = re.compile(r"(set\s|echo\s|module\s+purge)")
# Slurm sets these variables, and Drumline's launcher sets the values of the table.
_SLURM: Final = re.compile(r"\$\{?(SLURM_\w+)")
_VARIABLES: Final = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NODEID": "NODE_RANK",
    "SLURM_NNODES": "NNODES",
    "SLURM_JOB_NUM_NODES": "NNODES",
    "SLURM_GPUS_ON_NODE": "NPROC_PER_NODE",
}


@dataclass(slots=True, kw_only=True)
class _Script:
    """Parts of a script that were read so far."""

    options: dict[str, SlurmOption] = field(default_factory=dict[str, SlurmOption])
    env: list[Json] = field(default_factory=list[Json])
    commands: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def convert_sbatch(text: str, wanted: Wanted) -> Conversion:
    """Return the script as a TrainingJob.

    Raises:
        ConversionError: it cannot be one.
    """
    # Phase 1: read options, variables and commands, and select the one command that trains.
    notes = Notes()
    script = _read(text, notes)
    line, words, starts = _command(script, notes)
    options = script.options
    # Phase 2: compute the size, and find the image. Slurm jobs often run without a container.
    nodes = _count(options, "nodes") or 1
    gpus = _gpus(options, nodes=nodes)
    image = wanted.image or _text(options, "container-image", notes, to="spec.template.image")
    # A path is a local image file of the cluster, which Kubernetes cannot pull.
    if image is None or image.startswith(("/", ".", "~", "$")):
        raise ConversionError(
            path=f"line {line}", problem="the script names no container image; give --image"
        )
    # Phase 3: convert options to fields of the spec and the template.
    spec: Json = {"nodes": nodes, "gpusPerNode": gpus}
    account = _text(options, "account", notes, to="spec.queue")
    if account is not None:
        spec["queue"] = account
    spec |= _settings(options, gpus=gpus, notes=notes)
    # pyxis separates the registry by `#`. Container registries use a slash.
    template: Json = {"image": image.replace("#", "/")}
    template |= _launch(
        words, options, nodes=nodes, gpus=gpus, line=line, starts=starts, notes=notes
    )
    folder = _text(options, "chdir", notes, to="spec.template.workingDir")
    if folder is not None:
        template["workingDir"] = folder
    if script.env:
        template["env"] = script.env
    spec["template"] = template
    name = _job_name(options, notes)
    # Phase 4: note every option, so that the user sees the ones that were lost.
    noted = {note.path for note in notes.made}
    for option in options.values():
        if not option.read:
            notes.left_out(option.path, option.why_not)
        elif option.path not in noted:
            notes.carried(option.path, option.goes_to)
    # The script has no fields of an object, so nothing else is left to report.
    document = Fields({}, notes=notes)
    return finished(document, {"name": name}, spec, wanted=wanted)


def _read(text: str, notes: Notes) -> _Script:
    script = _Script()
    for number, line in _lines(text):
        directive = re.match(r"#SBATCH\s+(.*)", line)
        # Slurm stops reading directives at the first command.
        if directive is not None and not script.commands:
            # `comments=True` drops a trailing comment of the directive, as Slurm does.
            for option in parse_options(_words(directive[1], number, comments=True), line=number):
                script.options[option.name] = option
            continue
        if directive is not None:
            notes.left_out(f"line {number}", "Slurm ignores #SBATCH lines after the first command")
        if line.startswith("#") or not line:
            continue
        # An export is the only shell statement that a template can express.
        export = _EXPORT.fullmatch(line)
        if export is None:
            script.commands.append((number, line))
            continue
        _export(export[1], export[2], number=number, script=script, notes=notes)
    return script


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; those that end with a backslash are joined."""
    begun, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        # Messages name the first of the joined lines.
        start = start or number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield start, (begun + line).strip()
        begun, start = "", 0
    # A backslash on the last line continues nothing, but the line still counts.
    if begun:
        yield start, begun.strip()


def _export(name: str, value: str, *, number: int, script: _Script, notes: Notes) -> None:
    path = f"line {number}: {name}"
    if name.startswith("DRUMLINE_") or name in RESERVED_ENV:
        notes.left_out(path, f"Drumline or the pool sets {name}")
    elif _IS_LITERAL.fullmatch(value) is None:
        notes.left_out(path, "a shell computes its value; set it in template.env")
    else:
        words = _words(value, number)
        # The last assignment of a name wins, as in a shell.
        script.env = [variable for variable in script.env if variable["name"] != name]
        script.env.append({"name": name, "value": words[0] if words else ""})
        notes.carried(path, "spec.template.env")


def _command(script: _Script, notes: Notes) -> tuple[int, str, bool]:
    """Line and text of what is run, and whether srun starts it; other lines are noted."""
    # srun starts tasks on all nodes. All other lines run only on the first node.
    steps = [(number, line) for number, line in script.commands if line.split()[0] == "srun"]
    nodes = _count(script.options, "nodes") or 1
    if len(steps) > 1:
        raise ConversionError(
            path=f"line {steps[1][0]}", problem="a second srun; a TrainingJob runs only one command"
        )
    if not script.commands:
        raise ConversionError(path="line 1", problem="the script runs no command")
    if not steps and nodes > 1:
        raise ConversionError(
            path=f"line {script.commands[-1][0]}",
            problem=f"without srun the command runs only on the first of {nodes} nodes",
        )
    # Without srun the last command is the program. Earlier lines usually prepare it.
    number, line = steps[0] if steps else script.commands[-1]
    for other, skipped in script.commands:
        if other != number and _QUIET.match(skipped) is None:
            notes.left_out(
                f"line {other}: {skipped[:60]}",
                "the other lines of the batch script are not run; the image must contain what"
                " they set up",
            )
        elif other != number:
            notes.left_out(f"line {other}: {skipped[:60]}", "not needed")
    if not steps:
        return number, line, False
    # The first word is `srun` itself.
    words = _words(line, number)[1:]
    options = list(parse_options(words, line=number, stop_at_command=True))
    for option in options:
        if option.name != "":
            # Options of srun override directives, because srun reads them later.
            script.options[option.name] = option
    # Cut the text after the options, so that quotes in the command stay as written.
    rest = line
    for _ in range(1 + sum(option.words for option in options)):
        rest = _after_word(rest)
    if not rest:
        raise ConversionError(path=f"line {number}", problem="srun without a command")
    return number, rest, True


def _after_word(line: str) -> str:
    """Return the line without its first word, in the shell's sense."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=False)
    reader.whitespace_split = True
    reader.commenters = ""
    reader.get_token()
    # shlex has read exactly one word, so the stream is at the end of that word.
    stream: Any = reader.instream
    return line[stream.tell() :].strip()


def _launch(
    command: str,
    options: dict[str, SlurmOption],
    *,
    nodes: int,
    gpus: int,
    line: int,
    starts: bool,
    notes: Notes,
) -> Json:
    path = f"line {line}"
    # One note per variable, even if the command uses it several times.
    for name in dict.fromkeys(_SLURM.findall(command)):
        ours = _VARIABLES.get(name)
        notes.check(
            path, f"{name} is not set; {f'use {ours}' if ours else 'there is no such variable'}"
        )
    # These characters need a shell. A plain list of words is safer without one.
    needs_shell = re.search(r"[$`|&;<>*?]", command) is not None
    words = ["bash", "-c", command] if needs_shell else _words(command, line)
    notes.carried(path, "spec.template.command")
    # Slurm starts one task per node by default.
    tasks = _count(options, "ntasks-per-node") or (_count(options, "ntasks") or nodes) // nodes
    # A TrainingJob starts one process per GPU or per Pod. No other number is possible.
    if starts and tasks > 1 and tasks != gpus:
        raise ConversionError(
            path=path,
            problem=f"{tasks} tasks on nodes of {gpus} GPUs; a command runs once per GPU or once"
            " per pod",
        )
    if starts and tasks == gpus:
        notes.check(path, "template.launch is PerGpu: one rank per GPU replaces one task per GPU")
        return {"command": words, "launch": "PerGpu"}
    fields = Fields({}, notes=notes)
    return {"command": words, **launch_fields(words, gpus=gpus, path=path, fields=fields)}


def _settings(options: dict[str, SlurmOption], *, gpus: int, notes: Notes) -> Json:
    spec: Json = {}
    pool = _text(options, "partition", notes, to="spec.gpuPool")
    if pool is not None:
        spec["gpuPool"] = pool
        # A partition often has the name of its hardware, but a GpuPool may be called differently.
        notes.check(
            options["partition"].path,
            "set it to a GpuPool, or remove spec.gpuPool to allow any pool",
        )
    limit = options.get("time")
    if limit is not None and (seconds := seconds_of(limit.value, path=limit.path)) is not None:
        limit.read = True
        spec["activeDeadlineSeconds"] = seconds
        notes.carried(limit.path, "spec.activeDeadlineSeconds")
    tasks = _count(options, "ntasks-per-node") or 1
    resources: dict[str, str] = {}
    # CPUs per task apply to each task, but a Pod holds all tasks of its node.
    cpus = _count(options, "cpus-per-task")
    per_gpu = _count(options, "cpus-per-gpu")
    if cpus is not None or per_gpu is not None:
        resources["cpu"] = str(cpus * tasks if cpus is not None else (per_gpu or 0) * gpus)
    for name, times in (
        ("mem", 1),
        ("mem-per-gpu", gpus),
        ("mem-per-cpu", int(resources.get("cpu", "1"))),
    ):
        memory = options.get(name)
        # Slurm's default unit is MiB, and its units are powers of two.
        parsed = re.fullmatch(r"([1-9][0-9]{0,9})([KMGT]?)B?", memory.value if memory else "")
        if memory is not None and parsed is not None:
            memory.read = True
            resources["memory"] = f"{int(parsed[1]) * times}{parsed[2] or 'M'}i"
            notes.carried(memory.path, "spec.resources.memory")
    if resources:
        spec["resources"] = resources
    return spec


def _gpus(options: dict[str, SlurmOption], *, nodes: int) -> int:
    # More specific options come first.
    for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
        option = options.get(name)
        value = option.value if option else ""
        parsed = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([0-9]{1,5})", value)
        # `--gres` can also request other resources. Only GPUs count here.
        if option is None or (name == "gres" and not value.startswith("gpu")):
            continue
        if parsed is None:
            raise ConversionError(path=option.path, problem=f"{value}: not a number of GPUs")
        option.read = True
        number = int(parsed[1])
        if name == "gpus-per-task":
            return number * (_count(options, "ntasks-per-node") or 1)
        # `--gpus` is the sum over all nodes.
        if name == "gpus" and number % nodes:
            raise ConversionError(
                path=option.path, problem=f"{number} GPUs must be a multiple of {nodes} nodes"
            )
        return number // nodes if name == "gpus" else number
    raise ConversionError(
        path="#SBATCH", problem="requests no GPU (--gpus-per-node, --gres=gpu:N, --gpus)"
    )


def _job_name(options: dict[str, SlurmOption], notes: Notes) -> str:
    given = _text(options, "job-name", notes, to="metadata.name") or "job"
    # A Kubernetes name is a DNS label. The name of a job has at most 50 characters.
    name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:50].rstrip("-") or "job"
    return name if name[0].isalpha() else f"job-{name}"[:50].rstrip("-")


def _text(options: dict[str, SlurmOption], name: str, notes: Notes, *, to: str) -> str | None:
    option = options.get(name)
    if option is None or not option.value:
        return None
    # `read` marks the option as used, so it is not reported as left out.
    option.read = True
    notes.carried(option.path, to)
    return option.value


def _count(options: dict[str, SlurmOption], name: str) -> int | None:
    option = options.get(name)
    if option is None:
        return None
    option.read = True
    # Six digits at most: a larger number is a typing mistake.
    if re.fullmatch(r"[1-9][0-9]{0,5}", option.value) is None:
        raise ConversionError(path=option.path, problem=f"{option.value}: not a whole number")
    return int(option.value)


def _words(text: str, line: int, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError as error:
        raise ConversionError(path=f"line {line}", problem=f"not shell: {error}") from None
