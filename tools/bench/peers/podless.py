"""An operator that admits jobs and creates no pods: `python -m tools.bench.peers.podless`.

Kueue's own performance test counts admitted Workloads that have no pods. This is the same for us:
every write of an admission, and none of a pod. The bench ends the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from drumline.__main__ import OPERATOR, main
from drumline.kube import writes


async def _created_nothing(
    *_: Any, bodies: Iterable[writes.Body], **__: Any
) -> list[writes.Written]:
    return [writes.Written(uid="none", resource_version="0") for _ in bodies]


if __name__ == "__main__":
    writes.create_many = _created_nothing  # type: ignore[assignment] - the point of this program
    sys.exit(main([OPERATOR]))
