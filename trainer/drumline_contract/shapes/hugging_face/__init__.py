"""Their config.json and our `ModelConfig`. No torch: the planner reads models with it too.

A key of theirs that changes what a model computes is translated, or must have the only value that
our model stands for. A key that is not known is refused, unless `without_effect` says why its value
changes nothing: nothing is silently ignored that might give other logits.

`kinds` lists their model types as tables, `parts` has what no table of names can say, `translation`
goes both ways, `folder` reads the file and takes the language model out of a multimodal one,
`vision` has what a model of images is and how its pixels are scaled.
"""

from drumline_contract.shapes.hugging_face.folder import (
    CONFIG_FILE,
    LanguageNames,
    model_folder,
    read_config,
    read_json,
    unreadable,
    with_model_of_folder,
)
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Kind
from drumline_contract.shapes.hugging_face.translation import (
    differences,
    kind_of,
    kind_of_file,
    to_ours,
    to_theirs,
)
from drumline_contract.shapes.hugging_face.vision import (
    IMAGE_PROCESSOR_FILE,
    check_image_processor,
    class_labels,
    fitted,
    has_no_classifier,
    image_processor,
)

__all__ = [
    "CONFIG_FILE",
    "IMAGE_PROCESSOR_FILE",
    "HuggingFaceError",
    "Kind",
    "LanguageNames",
    "check_image_processor",
    "class_labels",
    "differences",
    "fitted",
    "has_no_classifier",
    "image_processor",
    "kind_of",
    "kind_of_file",
    "model_folder",
    "read_config",
    "read_json",
    "to_ours",
    "to_theirs",
    "unreadable",
    "with_model_of_folder",
]
