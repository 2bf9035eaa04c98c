"""One rank's process: joins the other ranks, trains, ends with an exit code of the contract.

The names below are what the agent expects of a rank module (DRUMLINE_RANK_MODULE). Another trainer
brings a module of its own with `run_rank`, `serve_store`, `exit_code_of` and optionally `preload`.
"""

from drumline_trainer.launch.preload import preload
from drumline_trainer.rank.exit_codes import exit_code_of
from drumline_trainer.rank.run import rank_main, run_rank
from drumline_trainer.recovery.rendezvous_store import serve_store

__all__ = ["exit_code_of", "preload", "rank_main", "run_rank", "serve_store"]
