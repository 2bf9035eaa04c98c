"""The pods whose cost is measured: each variant is the operator's pod without one part."""

from __future__ import annotations

import json

from tools.bench.pod_cost import BARE, variants


def test_each_variant_lacks_something_of_the_whole_pod() -> None:
    sizes = {name: len(json.dumps(variant.pod)) for name, variant in variants().items()}
    whole = sizes["pod of a gang"]
    lacking = {name: size for name, size in sizes.items() if name.startswith("  without ")}
    assert len(lacking) == 9
    assert all(sizes[BARE] < size < whole for size in lacking.values())
