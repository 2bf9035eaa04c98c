"""Variables for agents whose ranks follow a script (`scripted_rank`)."""

from __future__ import annotations

import json

MODULE = {"DRUMLINE_RANK_MODULE": "tests.faults.agent.scripted_rank"}


def script(**ranks: list[str]) -> dict[str, str]:
    """Ranks (`r0=[...]`) run these lines, again in each new process."""
    lines = {name.removeprefix("r"): list(lines) for name, lines in ranks.items()}
    return {**MODULE, "SCRIPT": json.dumps(lines)}
