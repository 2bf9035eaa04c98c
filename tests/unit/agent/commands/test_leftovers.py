from __future__ import annotations

import os
from pathlib import Path

from drumline_agent.commands.leftovers import MARK_VARIABLE, leftovers
from drumline_contract import Env

ENVIRONMENTS = {
    10: [f"{Env.JOB_UID}=uid", f"{MARK_VARIABLE}=mark"],  # a worker of torchrun
    11: [f"{Env.JOB_UID}=uid", f"{MARK_VARIABLE}=mark"],  # below a rank that runs
    12: [f"{Env.JOB_UID}=uid", "PATH=/bin"],  # an orphan of `kubectl exec`
    13: [""],  # an orphan of a rank, below sudo
    14: [""],  # of another parent
    15: None,  # of another user
}


def test_orphans_of_ranks_are_known_by_their_mark_or_their_parent(tmp_path: Path) -> None:
    for pid, variables in ENVIRONMENTS.items():
        (tmp_path / str(pid)).mkdir()
        if variables is not None:
            (tmp_path / str(pid) / "environ").write_text("\0".join(variables))
    parents = dict.fromkeys(ENVIRONMENTS, os.getpid()) | {11: 20, 14: 12, 20: os.getpid()}
    processes = {pid: (parent, 0.0) for pid, parent in parents.items()}
    assert leftovers("mark", kept=[20], processes=processes, folder=tmp_path) == [10, 13]
