"""Validate manifests of our kinds as the API server would, without a server.

`refusals` decodes strictly, sets defaults, checks the structural schema, and evaluates the rules in
CEL. `decide`, `run --dry-run`, `plan` and `clone` share it. It never asks a cluster: a webhook or a
policy of a site can refuse more.
"""

from drumline_cli.validation.objects import ServerRefusal, check, refusals

__all__ = ["ServerRefusal", "check", "refusals"]
