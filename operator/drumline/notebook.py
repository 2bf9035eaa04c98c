"""Users write `import drumline.notebook as dl` and get `drumline_console.notebook`."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("drumline_console.notebook")
