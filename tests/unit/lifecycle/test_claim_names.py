"""An error about a full folder names the claim."""

from __future__ import annotations

import pytest

from drumline.lifecycle.incidents.claim_names import with_claim_names
from drumline_api.trainingjob import TrainingJobSpec

TRAINER = TrainingJobSpec.model_validate(
    {
        "queue": "q",
        "trainer": {"data": {"claimName": "corpus"}},
        "checkpoint": {"claimName": "runs", "path": "a"},
    }
)
SCRIPT = TrainingJobSpec.model_validate(
    {
        "queue": "q",
        "template": {
            "image": "i",
            "launch": "PerGpu",
            "command": ["python", "train.py"],
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "out"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "deep"}},
                {"name": "c", "emptyDir": {}},
            ],
            "volumeMounts": [
                {"name": "a", "mountPath": "/out"},
                {"name": "b", "mountPath": "/out/deep"},
                {"name": "c", "mountPath": "/scratch"},
            ],
        },
    }
)


@pytest.mark.parametrize(
    ("spec", "text", "named"),
    [
        (TRAINER, "No space left on /checkpoints", "No space left on /checkpoints (claim runs)"),
        (TRAINER, "step 5: No space left on device", "left on /checkpoints (claim runs)"),
        (TRAINER, "folder /data/x: No space left on device", "left on /data (claim corpus)"),
        (SCRIPT, "No space left on /out: '/out/a'", "No space left on /out (claim out): '/out/a'"),
        (SCRIPT, "No space left on /out/deep", "/out/deep (claim deep)"),
        (SCRIPT, "Disk quota exceeded on /out", "Disk quota exceeded on /out (claim out)"),
        (SCRIPT, "No space left on /scratch", "No space left on /scratch"),
        (SCRIPT, "No space left on device", "No space left on device"),
        (SCRIPT, "ValueError: boom", "ValueError: boom"),
    ],
)
def test_the_claim_is_named(spec: TrainingJobSpec, text: str, named: str) -> None:
    said = with_claim_names(text, spec)
    assert said.endswith(named)
    assert with_claim_names(said, spec) == said
