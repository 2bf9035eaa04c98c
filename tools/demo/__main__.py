"""`make demo`: from nothing to two jobs that train on a Kubernetes of this machine."""

from __future__ import annotations

import argparse
import http.client
import re
import sys
from collections.abc import Sequence

from tests.kube import Kube
from tools.cluster import Cluster, ClusterError, ClusterSpec, load, start, update_images
from tools.cluster.binaries import ensure_binaries
from tools.cluster.cache import MissingToolError
from tools.cluster.rest import ApiStatusError
from tools.demo import farewell, live, site
from tools.demo.plan import about, made_once, plan
from tools.demo.preview import shown_beside
from tools.demo.screen import Screen

_OWN_CLOCK = re.compile(r"^\[ *[0-9.]+ s\] ")
"""What the cluster tool puts before its lines; the screen has a clock of its own."""
_WITHOUT_NODES = """\
Without real nodes these still work: `make test PART=unit`, `make test PART=trainer` (several
processes train over Gloo), `make test PART=integration` (the operator against a real API server),
`make bench`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 1 with a sentence when something cannot be done or a job fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--name", default="drumline", help="the cluster (default: drumline)")
    name = parser.parse_args(argv).name
    screen = Screen()
    try:
        return _demo(ClusterSpec(name=name), screen=screen)
    except (ClusterError, MissingToolError, ApiStatusError, TimeoutError) as error:
        return _sorry(str(error), name=name)
    except (OSError, http.client.HTTPException) as error:
        return _sorry(f"the cluster does not answer any more: {error!r}", name=name)
    except KeyboardInterrupt:
        screen.live("")
        print(f"\nStopped. What was started stays; {_down(name)} removes every trace of it.")
        return 130


def _demo(spec: ClusterSpec, *, screen: Screen) -> int:
    if not _announce(spec, screen=screen):
        return 1
    screen.title("Cluster")
    cluster = _cluster(spec, screen=screen)
    racks = _racks(cluster)
    screen.title("Drumline")
    site.install_drumline(cluster, screen=screen)
    checkpoints = site.open_team(cluster)
    screen.say(f"installed; namespace {site.NAMESPACE}, GpuPool and TrainingQueue are made")
    screen.title("Two jobs of 2 nodes x 2 GPUs, in a queue that may hold 6")
    names = site.submit(cluster)
    screen.say("kubectl apply -f " + " -f ".join(f"examples/{f.name}" for f in site.JOB_FILES))
    live.watch(cluster, names, racks=racks, screen=screen)
    kube = Kube(cluster.kubeconfig)
    jobs = [kube.get("trainingjobs", name, site.NAMESPACE) for name in names]
    outcomes = [farewell.outcome(job, checkpoints=checkpoints) for job in jobs]
    screen.title(f"After {screen.clock().strip()} min")
    for line in [*farewell.table(outcomes, racks=racks), ""]:
        screen.plain(line)
    for line in farewell.around(cluster, first_job=names[0], down=_down(spec.name)):
        screen.plain(line)
    failed = [each for each in outcomes if each.status["phase"] == "Failed"]
    for each in failed:
        print(f"\ndemo: job {each.name} failed: {each.status.get('message')}", file=sys.stderr)
    return 1 if failed else 0


def _announce(spec: ClusterSpec, *, screen: Screen) -> bool:
    """Say what is coming; False when this machine cannot do it."""
    try:
        parts = plan(spec)
    except ClusterError as error:
        print(f"demo: {error}\n{_WITHOUT_NODES}", file=sys.stderr)
        return False
    screen.title("Drumline: Kubernetes on this machine, Drumline in it, two jobs that train")
    for number, part in enumerate(parts, start=1):
        screen.plain(f"  {number}. {part.line()}")
    total = about(sum(part.seconds for part in parts))
    screen.plain(f"{total} in all on two cores. Ctrl-C at any moment; {_down(spec.name)} removes")
    screen.plain("every trace. Nothing outside this machine can reach the cluster.")
    return True


def _cluster(spec: ClusterSpec, *, screen: Screen) -> Cluster:
    """The running cluster with the repository's images as they are now, or a new one."""

    def say(line: str) -> None:
        screen.say(_OWN_CLOCK.sub("", line))

    with screen.working("cluster"):
        if load(spec.name) is not None:
            update_images(spec.name, say=say)
        with shown_beside(bool(made_once()), say=say):
            cluster = start(spec, say=say)
        ensure_binaries(["kubectl", "helm"], say=say)
        return cluster


def _racks(cluster: Cluster) -> dict[str, str]:
    return {node.name: node.rack for node in cluster.nodes}


def _down(name: str) -> str:
    command = "make down" if name == "drumline" else f"python -m tools.cluster down --name {name}"
    return f"`{command}`"


def _sorry(problem: str, *, name: str) -> int:
    print(f"\ndemo: {problem}", file=sys.stderr)
    print(f"The cluster stays for a look, if it runs; {_down(name)} removes it.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
