"""The cluster tool on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.cache import MissingToolError
from tools.cluster.context import IMAGES, write_context
from tools.cluster.lifecycle import load, start, stop, update_images
from tools.cluster.model import ClusterError, ClusterSpec, Provider
from tools.cluster.process import find


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 1 with a sentence on standard error when it cannot be done."""
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except (ClusterError, MissingToolError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted: `down --name {options.name}` removes what is left", file=sys.stderr)
        return 130


def _say(line: str) -> None:
    print(line, flush=True)


def _up(options: argparse.Namespace) -> int:
    spec = ClusterSpec(
        name=options.name,
        provider=options.provider,
        nodes=options.nodes,
        gpus_per_node=options.gpus,
        racks=options.racks,
        fake_nodes=options.fake_nodes,
        kwok=options.kwok,
    )
    start(spec, say=_say)
    return 0


def _down(options: argparse.Namespace) -> int:
    stop(options.name, say=_say)
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = load(options.name)
    if cluster is None:
        print(f"cluster {options.name} does not run")
        return 1
    print(f"cluster {cluster.name} ({cluster.provider}): export KUBECONFIG={cluster.kubeconfig}")
    for node in cluster.nodes:
        print(f"  {node.name}: {node.address}, {node.gpus} GPUs, {node.rack}")
    for process in find(cluster.folder):
        print(f"  {process.pid:>8} {process.role}")
    return 0


def _images(options: argparse.Namespace) -> int:
    update_images(options.name, say=_say)
    return 0


def _context(options: argparse.Namespace) -> int:
    write_context(options.image, options.folder)
    print(f"docker build -f docker/{options.image}.Dockerfile {options.folder}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("--name", default="drumline", help="the cluster (default: drumline)")
        added.set_defaults(run=run)
        return added

    up = command("up", _up, "start a cluster, or say that it runs")
    up.add_argument("--provider", type=Provider, choices=list(Provider), default=None)
    up.add_argument("--nodes", type=int, default=3, help="real kubelets (0: control plane alone)")
    up.add_argument("--gpus", type=int, default=2, help="GPUs of each real node")
    up.add_argument("--racks", type=int, default=2)
    up.add_argument("--fake-nodes", type=int, default=0, help="KWOK nodes of 8 GPUs")
    up.add_argument("--kwok", action="store_true", help="run KWOK even without fake nodes")
    command("down", _down, "remove every trace of a cluster")
    command("status", _status, "say what runs")
    command("images", _images, "build the images anew and load them into a running cluster")
    context = commands.add_parser("context", help="write an image's build context to a new folder")
    context.add_argument("image", choices=sorted(IMAGES))
    context.add_argument("folder", type=Path)
    context.set_defaults(run=_context, name="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
