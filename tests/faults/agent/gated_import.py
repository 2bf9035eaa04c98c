"""A rank module whose import lasts until something is written to GATE."""

import os
from pathlib import Path

Path(os.environ["GATE"]).read_text()
