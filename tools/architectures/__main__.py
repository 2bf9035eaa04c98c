"""`python -m tools.architectures [TYPE ...]`: train them; all: write the page."""

from __future__ import annotations

import sys

from drumline_trainer.models.transformers.module import imported_library
from tools.architectures.gang import table
from tools.architectures.page import PAGE, page

if __name__ == "__main__":
    rows = table(sys.argv[1:])
    if not sys.argv[1:]:
        PAGE.write_text(page(rows, version=imported_library().__version__))
