"""Exchange with Hugging Face: folders of config.json and safetensors, read and written.

Each as `transformers` lays it out. `contract.shapes.hugging_face`, outside,
translates configurations, `names` says which of their tensors is made of which of ours, `files`
knows the format, `exchange` does both directions. Never pickle.
"""

from drumline_contract.shapes.hugging_face import HuggingFaceError
from drumline_trainer.models.hugging_face.copies import load_for_copies
from drumline_trainer.models.hugging_face.exchange import (
    OpenedWeights,
    check_hugging_face,
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
    opened_weights,
    projection_names,
)
from drumline_trainer.models.hugging_face.files import weights_digest

__all__ = [
    "HuggingFaceError",
    "OpenedWeights",
    "check_hugging_face",
    "export_hugging_face",
    "import_hugging_face",
    "load_for_copies",
    "load_hugging_face",
    "opened_weights",
    "projection_names",
    "weights_digest",
]
