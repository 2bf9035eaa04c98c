"""A plain script of the user under an agent: a killed rank costs a restart of processes, no pod.

The script knows nothing of Drumline. Its ranks sum numbers over TCP as torchrun's variables say,
and rank 0 saves every five steps; each step's state is a function of the one before, so that a
repeated, lost or doubled step shows in all that follow.
"""

from __future__ import annotations

import itertools
import json

from tests.e2e.site import Site
from tools.cluster.images import TRAINER_IMAGE

RANKS = 4
STEPS = 30
STRUCK_AT = 12
SCRIPT = """
import json, os, pathlib, signal, socket, time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = pathlib.Path("/checkpoints/script")
folder.mkdir(exist_ok=True)
saved, struck = folder / "saved", folder / "struck"
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"began-{attempt}-{rank}").write_text(os.environ["MASTER_PORT"])
step, state = json.loads(saved.read_text()) if saved.exists() else (0, 1)
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", address[1]))
    peers = [server.accept()[0].makefile("rw") for _ in range(ranks - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address).makefile("rw")]
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
def tell(number):
    for peer in peers:
        peer.write(f"{number}\\n")
        peer.flush()
def hear():
    lines = [peer.readline() for peer in peers]
    if "" in lines:
        raise ConnectionResetError("connection closed by peer")
    return sum(map(int, lines))
while step < 30:
    part = (state * (rank + 3) + step) % 10007
    if rank == 0:
        state = part + hear()
        tell(state)
    else:
        tell(part)
        state = hear()
    step += 1
    if rank == 0:
        with (folder / "states").open("a") as states:
            states.write(f"{json.dumps([int(attempt), step, state])}\\n")
        if step % 5 == 0:
            draft = folder / "draft"
            draft.write_text(json.dumps([step, state]))
            draft.rename(saved)
    if rank == 3 and step == 12 and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
print("done", rank, flush=True)
"""


def undisturbed() -> dict[int, int]:
    """The state after each step."""

    def following(state: int, step: int) -> int:
        return sum((state * (rank + 3) + step) % 10007 for rank in range(RANKS))

    states = itertools.accumulate(range(STEPS), following, initial=1)
    return dict(enumerate(states))


def test_a_killed_rank_of_a_plain_script_restarts_in_place(site: Site) -> None:
    template = {
        "image": TRAINER_IMAGE,
        "launch": "PerGpu",
        "command": ["python3", "-c", SCRIPT],
        "terminationGracePeriodSeconds": 5,
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "volumeMounts": [{"name": "saved", "mountPath": "/checkpoints"}],
    }
    site.submit("script", nodes=2, gpusPerNode=2, template=template)
    status = site.finish("script")
    folder = site.checkpoints / "script"
    rows = [json.loads(line) for line in (folder / "states").read_text().splitlines()]
    expected = undisturbed()
    assert {(step, state) for _, step, state in rows} == {
        (step, expected[step]) for step in range(1, STEPS + 1)
    }
    again = [step for attempt, step, _ in rows if attempt == 1]
    assert again == list(range(11, STEPS + 1)), "it went on from its own checkpoint"
    ports = {path.name: path.read_text() for path in folder.glob("began-*")}
    assert set(ports) == {f"began-{attempt}-{rank}" for attempt in (0, 1) for rank in range(RANKS)}
    assert ports["began-0-0"] != ports["began-1-0"]
    pods = site.pods("script")
    assert [pod["metadata"]["name"] for pod in pods] == ["script-0-g1", "script-1-g1"]
    restarts = [each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]]
    assert (status["generation"], restarts) == (1, [0, 0])
    incident = status["lastIncident"]
    assert (incident["attempt"], incident["rank"]) == (1, 3)
    assert (incident["faultClass"], incident["pod"]) == ("Infrastructure", "script-1-g1")
