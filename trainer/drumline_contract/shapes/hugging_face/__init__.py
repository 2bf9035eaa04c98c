"""Translation between Hugging Face config.json and `ModelConfig`. No torch, as the planner uses it.

A key that changes the computation is translated, or must have the only value that our model
supports. An unknown key is refused, unless `without_effect` explains why its value changes nothing.
No key that could change the logits is ignored.

`kinds` lists the model types as tables. `parts` has the rules that a table of names cannot express.
`translation` converts both ways. `folder` reads the file and selects the language model of a
multimodal one. `vision` has models of images and the scaling of their pixels.
"""

from drumline_contract.shapes.hugging_face.folder import (
    CONFIG_FILE,
    LANGUAGE_MODULE,
    LanguageNames,
    from_hub,
    is_multimodal,
    model_folder,
    module_name,
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
    "LANGUAGE_MODULE",
    "HuggingFaceError",
    "Kind",
    "LanguageNames",
    "check_image_processor",
    "class_labels",
    "differences",
    "fitted",
    "from_hub",
    "has_no_classifier",
    "image_processor",
    "is_multimodal",
    "kind_of",
    "kind_of_file",
    "model_folder",
    "module_name",
    "read_config",
    "read_json",
    "to_ours",
    "to_theirs",
    "unreadable",
    "with_model_of_folder",
]
