"""Runs `drumline convert`: bounded files in, TrainingJobs out, notes beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from drumline.kube.yaml_bounds import YamlBounds, excess
from drumline_cli.commands import Output
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.jobset import convert_jobset
from drumline_cli.convert.model import Conversion, ConversionError, Fate, Notes, Wanted
from drumline_cli.convert.mpijob import convert_mpijob
from drumline_cli.convert.pytorchjob import convert_pytorchjob
from drumline_cli.convert.sbatch import convert_sbatch
from drumline_cli.convert.trainjob import convert_trainjob
from drumline_cli.convert.volcano import convert_volcano
from drumline_cli.errors import BadInput
from drumline_cli.job_yaml import job_yaml
from drumline_cli.manifests import display_name, manifests_in, read_text
from drumline_contract import plain

# A job's manifest has a few kilobytes. The bounds stop hostile input.
MAX_CHARACTERS: Final = 1_000_000
BOUNDS: Final = YamlBounds(depth=48, values=100_000, unfolded=100_000)
CONVERTERS: Final[Mapping[tuple[str, str], Callable[[Fields, Wanted], Conversion]]] = {
    ("kubeflow.org", "PyTorchJob"): convert_pytorchjob,
    ("kubeflow.org", "MPIJob"): convert_mpijob,
    ("trainer.kubeflow.org", "TrainJob"): convert_trainjob,
    ("jobset.x-k8s.io", "JobSet"): convert_jobset,
    ("batch.volcano.sh", "Job"): convert_volcano,
}


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Print the TrainingJobs; what became of each field goes to standard error.

    Raises:
        CommandError: a file cannot be read, or a job of it cannot be a TrainingJob.
    """
    wanted = Wanted(queue=chosen.queue, image=chosen.image)
    jobs: list[dict[str, Any]] = []
    notes: list[str] = []
    for name in chosen.file:
        for where, conversion in _converted(name, wanted):
            jobs.append(conversion.job)
            notes.extend(_note_lines(where, conversion, quiet=chosen.quiet))
    # Notes go to standard error, so the output can be piped into kubectl.
    sys.stderr.write("".join(f"{line}\n" for line in notes))
    return Output(text=job_yaml(jobs))


def _converted(name: str, wanted: Wanted) -> Iterator[tuple[str, Conversion]]:
    text, as_of = read_text(name, longest=MAX_CHARACTERS)
    file = display_name(name)
    # A shebang or a directive identifies a script of Slurm.
    if text.startswith("#!") or "\n#SBATCH" in text:
        try:
            yield file, convert_sbatch(text, wanted)
        except ConversionError as error:
            raise BadInput(f"{file}, {plain(str(error))}") from None
        return
    # Stricter than the bounds of any manifest: converters visit each value several times.
    if problem := excess(text, BOUNDS):
        raise BadInput(f"{file}: {problem}; a job's manifest has fewer")
    converted = 0
    for number, document in enumerate(manifests_in(text, file=file, as_of=as_of), 1):
        where = f"{file}, document {number}: {document.kind} {document.namespaced_name[1]}"
        try:
            conversion = convert_document(
                document.raw, group=document.group, kind=document.kind, wanted=wanted
            )
        except ConversionError as error:
            blamed = document.blame(error.path, str(error))
            raise BadInput(f"{blamed} (document {number}, {document.kind})") from None
        # Files often contain Services and ConfigMaps beside the job.
        if conversion is None:
            sys.stderr.write(f"{where}: not converted; apply it too if the job needs it\n")
            continue
        converted += 1
        yield where, conversion
    # Without any job, the user probably passed the wrong file.
    if not converted:
        kinds = ", ".join(f"{kind} ({group})" for group, kind in CONVERTERS)
        raise BadInput(f"{file}: nothing to convert; want {kinds} or an sbatch script")


def _note_lines(where: str, conversion: Conversion, *, quiet: bool) -> Iterator[str]:
    yield f"{where}:"
    # The order of the fates puts carried fields first.
    for fate in Fate:
        if quiet and fate is Fate.CARRIED:
            continue
        # Several converters may note the same field.
        shown = dict.fromkeys(
            (note.path, note.text) for note in conversion.notes if note.fate is fate
        )
        for path, text in shown:
            arrow = " ->" if fate is Fate.CARRIED else ":"
            yield f"  {fate}: " + plain(f"{path}{arrow} {text}")


def convert_document(
    raw: Mapping[str, Any], *, group: str, kind: str, wanted: Wanted
) -> Conversion | None:
    """Return the object as a TrainingJob, or None if the kind has no converter.

    Args:
        raw: the object to convert.
        group: its API group.
        kind: its kind.
        wanted: choices from the command line.

    Raises:
        ConversionError: the object cannot become a TrainingJob.
    """
    convert = CONVERTERS.get((group, kind))
    return None if convert is None else convert(Fields(raw, notes=Notes()), wanted)
