"""Which converter a document is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from drumline.cli.convert.fields import Fields
from drumline.cli.convert.jobset import convert_jobset
from drumline.cli.convert.model import Conversion, Notes, Wanted
from drumline.cli.convert.mpijob import convert_mpijob
from drumline.cli.convert.pytorchjob import convert_pytorchjob
from drumline.cli.convert.trainjob import convert_trainjob
from drumline.cli.convert.volcano import convert_volcano

CONVERTERS: Final[Mapping[tuple[str, str], Callable[[Fields, Wanted], Conversion]]] = {
    ("kubeflow.org", "PyTorchJob"): convert_pytorchjob,
    ("kubeflow.org", "MPIJob"): convert_mpijob,
    ("trainer.kubeflow.org", "TrainJob"): convert_trainjob,
    ("jobset.x-k8s.io", "JobSet"): convert_jobset,
    ("batch.volcano.sh", "Job"): convert_volcano,
}


def convert_document(
    raw: Mapping[str, Any], *, group: str, kind: str, wanted: Wanted
) -> Conversion | None:
    """The object as a TrainingJob; None for a kind that is none of ours to convert.

    Raises:
        ConversionError: no TrainingJob can be made of it.
    """
    convert = CONVERTERS.get((group, kind))
    return None if convert is None else convert(Fields(raw, notes=Notes()), wanted)
