"""A command of the user's under agents: its variables, its failures, its notices, its end."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from drumline_contract import ExitCode, FaultClass, Launch, LaunchSettings, RemarkKind
from drumline_contract.step_series import decode
from tests.faults.agent.commands import CommandBand, launched, script_in, start_commands
from tests.faults.agent.gang import Gang
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=1)


SHOWN = """
import json, os, sys
names = sys.argv[1:] or [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "NNODES",
]
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
WAITS = """
import os, time
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK = os.environ["RANK"]
def wait():
    while True:
        time.sleep(60)
"""


async def test_per_gpu_each_rank_has_torchruns_variables(pods: Gang) -> None:
    await start_commands(pods, 2, script=SHOWN, ranks=2)
    assert await pods.ended() == [0, 0]
    for rank in range(4):
        [line] = pods.agents[rank // 2].printed(rank)
        assert json.loads(line) == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": pods.band.address(0),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "NNODES": None,
        }
    assert pods.leader.report.error == ""


async def test_per_pod_one_launcher_has_its_variables_in_its_arguments_too(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["/bin/sh", "-c", "echo $0 $NODE_RANK $NNODES $NPROC_PER_NODE; cat $1"]
    pods.band.command += ["at $(MASTER_ADDR) $(HOME)", "$(HYDRA_HOST_FILE)"]
    await start_commands(pods, 2, script="", launch=Launch.PER_POD, ranks=4)
    assert await pods.ended() == [0, 0]
    for index, agent in pods.agents.items():
        line = f"at {pods.band.address(0)} $(HOME) {index} 2 4"
        assert line in agent.lines, agent.text
        hostfile = (agent.folder / "gang" / "hostfile").read_text()
        assert hostfile == "job-0 slots=4\njob-1 slots=4\n"
        assert f"{pods.band.address(1)}\tjob-1" in (agent.folder / "gang" / "hosts").read_text()
        assert "job-1 slots=4" in agent.lines


FAILS_ONCE = """
import sys
print("attempt", ATTEMPT, "port", os.environ["MASTER_PORT"], flush=True)
printed = os.environ["FOLDER"] + "/printed"
if ATTEMPT == 0:
    if RANK == "1":
        while not os.path.exists(printed):  # it would take the other rank's line with it
            time.sleep(0.01)
        {death}
    open(printed, "w").close()
    wait()
"""


@pytest.mark.parametrize(
    ("death", "fault_class", "cause"),
    [
        ("raise ValueError('boom')", "Application", "rank 1: ValueError: boom [exit code 1]"),
        ("raise MemoryError('no room')", "OutOfMemory", "rank 1: MemoryError: no room"),
        ("sys.exit(64)", "Application", "rank 1: exit code 64; last line: "),
        ("os.kill(os.getpid(), 9)", "Infrastructure", "rank 1: killed by SIGKILL; last line: "),
    ],
    ids=["exception", "out of memory", "a code of its own", "SIGKILL"],
)
async def test_a_rank_that_dies_has_all_ranks_started_again_in_the_same_pods(
    pods: Gang, death: str, fault_class: str, cause: str
) -> None:
    await start_commands(pods, 2, script=WAITS + FAILS_ONCE.format(death=death))
    before = await pods.pids()
    after = await pods.pids()

    assert await pods.ended() == [0, 0]
    assert not set(before.values()) & set(after.values())
    [incident] = [event["incident"] for event in pods.leader.events("incident")]
    assert (incident["fault_class"], incident["culprit_rank"]) == (fault_class, 1)
    assert cause in incident["cause"], incident
    ports = [line.split()[-1] for line in pods.leader.lines if line.startswith("attempt")]
    assert len(set(ports)) == 2


LOSES_ITS_PEER = """
if ATTEMPT == 0:
    if RANK == "0":
        print("[rank0]: RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:5")
        print("[W] destroy_process_group() was not called")
        os._exit(1)
    open(os.environ["FOLDER"] + "/ready", "w").close()
    import pathlib
    while not pathlib.Path(os.environ["FOLDER"], "go").exists():
        time.sleep(0.01)
    raise ValueError("boom")
"""


async def test_the_root_cause_is_named_although_its_consequence_came_first(pods: Gang) -> None:
    await start_commands(pods, 2, script=WAITS + LOSES_ITS_PEER)
    await pods.leader.event("rank_exited")
    (pods.band.folder / "go").touch()

    assert await pods.ended() == [0, 0]
    [incident] = [event["incident"] for event in pods.leader.events("incident")]
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Application", 1)
    assert incident["cause"].startswith("rank 1: ValueError: boom")


async def test_a_pod_is_replaced_and_the_gang_starts_again(pods: Gang) -> None:
    runs = WAITS + "print('generation runs')\nif not os.path.exists(os.environ['FOLDER'] + '/end'):"
    await start_commands(pods, 2, script=runs + "\n    wait()\n")
    await pods.pids()
    (pods.band.folder / "end").touch()
    await pods.replace(1)

    assert await pods.ended() == [0, 0]
    assert len(pods.leader.events("ranks_started")) == 2


async def test_an_image_without_the_command_fails_with_a_sentence(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["trian.py"]
    await start_commands(pods, 1, script="")
    assert await pods.ended() == [ExitCode.CONFIG]
    error = pods.leader.report.error
    assert not missing(error, "'trian.py'")


async def test_restarts_end_with_their_budget(pods: Gang) -> None:
    pods.record_fields = {"restarts_left": {FaultClass.APPLICATION: 3}}
    await start_commands(pods, 1, script="raise ValueError('boom')")
    assert await pods.ended() == [1]
    assert len(pods.leader.events("ranks_started")) == 4
    assert not missing(pods.leader.report.error, "Application")


SAVES_WHEN_ASKED = """
import signal, sys
def save(*_):
    print("saved")
    sys.exit(1 - int(RANK))  # whatever it ends with
signal.signal(signal.SIGTERM, save)
print("ready")
wait()
"""


LEFT_IN_ITS_COLLECTIVE = """
import pathlib
if RANK == "1":
    sys.exit("no such layer")
print("waits for rank 1", flush=True)
wait()
"""


async def test_a_gang_that_gives_up_is_held_and_its_pods_say_so_at_their_end(pods: Gang) -> None:
    pods.record_fields = {"restarts_left": {"Application": 0}, "hold_seconds": 0.5}
    await start_commands(pods, 2, script=WAITS + "import sys" + LEFT_IN_ITS_COLLECTIVE)
    held = await pods.leader.event("gang_held")
    assert held["seconds"] == 0.5
    assert await pods.ended() == [ExitCode.PEER_LOST, ExitCode.APPLICATION]
    for agent in pods.agents.values():
        assert agent.report.held_seconds == 0.5
        assert "no such layer" in agent.report.error


async def test_a_hold_ends_with_its_pod(pods: Gang) -> None:
    pods.record_fields = {"restarts_left": {"Application": 0}, "hold_seconds": 86_400.0}
    await start_commands(pods, 2, script=WAITS + "import sys" + LEFT_IN_ITS_COLLECTIVE)
    await pods.leader.event("gang_held")
    status = await pods.status()
    assert status.remark is not None
    assert status.remark.sentence.startswith("held until ")
    for agent in pods.agents.values():
        agent.process.send_signal(signal.SIGTERM)
    await pods.ended()
    assert pods.leader.report.held_seconds == 0.0


async def test_a_pod_that_ends_has_every_rank_of_the_gang_notified(pods: Gang) -> None:
    await start_commands(pods, 2, script=WAITS + SAVES_WHEN_ASKED)
    for agent in pods.agents.values():
        await agent.until_line("ready")
    pods.agents[1].process.send_signal(signal.SIGTERM)

    assert await pods.agents[1].ended() == ExitCode.PREEMPTED
    await pods.leader.until_line("saved")
    assert "saved" in pods.agents[1].lines
    (pods.band.folder / "train.py").write_text("print('the second life')")
    await pods.replace(1)
    assert await pods.ended() == [0, 0]
    assert not pods.leader.events("fault")


async def test_a_notice_is_answered_at_once_where_nobody_acknowledges_it(pods: Gang) -> None:
    await start_commands(pods, 1, script=WAITS + "wait()")
    await pods.pids()
    await pods.notice("spot", leave=True)
    answer = (await pods.status()).notice
    assert answer is not None
    assert (answer.id, answer.step) == ("spot", None)
    assert answer.error == "the program does not acknowledge saves"


ENDS_EARLY = WAITS + "if RANK == '1' and ATTEMPT == 0:\n    wait()\n"


async def test_ranks_that_end_early_leave_the_rest_a_stated_time(pods: Gang) -> None:
    pods.record_fields = {"restarts_left": {FaultClass.APPLICATION: 1}}
    await start_commands(pods, 2, script=ENDS_EARLY, DRUMLINE_EARLY_EXIT_SECONDS="1")
    assert await pods.ended() == [0, 0]
    [incident] = [event["incident"] for event in pods.leader.events("incident")]
    assert not missing(incident["cause"], "rank 1", "1 s")


async def test_children_of_a_failed_rank_end_with_it(pods: Gang) -> None:
    child = "import subprocess\nif ATTEMPT == 0:\n    p = subprocess.Popen(['sleep', '600'])\n"
    child += "    print('child', p.pid, flush=True)\n    raise ValueError('boom')\n"
    await start_commands(pods, 1, script=WAITS + child)
    pid = int((await pods.leader.until_line("child")).split()[-1])
    assert await pods.ended() == [0]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_command_needs_its_settings(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["true"]
    agent = await pods.band.start(0)
    assert await agent.ended() == ExitCode.CONFIG
    assert not missing(agent.text, "DRUMLINE_LAUNCH")


async def test_a_launcher_is_not_started_for_each_gpu(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["env", "A=1", sys.executable, "-m", "torch.distributed.run", "train.py"]
    await start_commands(pods, 2, script="")
    assert ExitCode.CONFIG in await pods.ended()
    assert not missing(pods.leader.report.error, "template.launch to PerPod", "2 times")


NESTED = """
import os
import subprocess
workers = dict(os.environ, WORLD_SIZE="1", TORCHELASTIC_RUN_ID="none")
subprocess.run(["sleep", "600"], env=workers)
"""


async def test_a_script_that_starts_a_launcher_for_each_gpu_is_refused(pods: Gang) -> None:
    await start_commands(pods, 2, script=NESTED)
    assert ExitCode.CONFIG in await pods.ended()
    assert not missing(pods.leader.report.error, "template.launch to PerPod", "WORLD_SIZE 1, not 2")


STEPS = """
begin = 20 if ATTEMPT else 0
for step in range(begin + 10, 41, 10):
    if RANK == "0":
        print(f"iter {step}: loss {4 - step / 20:.4f}, time 1.00ms, mfu 12.00%")
        sys.stderr.write(f"{step}%\\r")
    if ATTEMPT == 0 and step == 30:
        if RANK == "1":
            import pathlib
            while not pathlib.Path(os.environ["FOLDER"], "go").exists():
                time.sleep(0.01)
            raise ValueError("boom")
        wait()
"""


async def test_the_steps_of_a_known_program_are_its_progress(pods: Gang) -> None:
    await start_commands(pods, 2, script=WAITS + "import sys" + STEPS)
    await pods.leader.until_line("iter 30")
    progress = (await pods.status()).progress
    assert (progress.step, progress.loss) == (30, 2.5)
    (pods.band.folder / "go").touch()

    assert await pods.ended() == [0, 0]
    [incident] = [event["incident"] for event in pods.leader.events("incident")]
    assert (incident["failed_step"], incident["restored_step"]) == (30, 20)
    assert incident["cause"].startswith("rank 1: ValueError: boom")
    last = pods.leader.report.progress
    assert last.step == 40
    assert [(each.step, each.loss) for each in decode(last.series)] == [(30, 2.5), (40, 2.0)]


OWN_FORMAT = (
    WAITS
    + """
for step in (1, 2):
    print(f"trained {step} of 7")
    print(f"  objective={1 / step}", flush=True)
wait()
"""
)


async def test_the_steps_of_another_program_are_by_its_template_s_patterns(pods: Gang) -> None:
    patterns = (r"^trained (?P<step>\d+) of (?P<totalSteps>\d+)$", r"objective=(?P<loss>\S+)")
    launch = LaunchSettings(launch=Launch.PER_GPU, progress_patterns=patterns)
    await start_commands(pods, 1, script=OWN_FORMAT, launch=launch)
    await pods.leader.until_line("objective=0.5")
    progress = (await pods.status()).progress
    assert (progress.step, progress.total_steps, progress.loss) == (2, 7, 0.5)
    assert [(each.step, each.loss) for each in decode(progress.series)] == [(1, 1.0), (2, 0.5)]


async def test_a_pattern_that_is_none_is_named(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["true"]
    launch = LaunchSettings(launch=Launch.PER_GPU, progress_patterns=("(?P<step>",))
    agent = await pods.band.start(0, variables=launched(launch))
    assert await agent.ended() == ExitCode.CONFIG
    assert "DRUMLINE_LAUNCH: pattern '(?P<step>', character 9: a ( without its )" in agent.text


async def test_processes_that_neither_print_nor_compute_start_again_where_that_is_asked_for(
    pods: Gang,
) -> None:
    pods.record_fields = {"hang_timeout_seconds": 2.0}
    script = WAITS + "if ATTEMPT == 0:\n    wait()\n"
    launch = LaunchSettings(launch=Launch.PER_GPU, watches_activity=True)
    await start_commands(pods, 2, script=script, launch=launch)
    assert await pods.ended() == [0, 0]
    [incident] = [event["incident"] for event in pods.leader.events("incident")]
    assert incident["fault_class"] == FaultClass.HANG
    assert incident["cause"].startswith("no rank moved for ")


DEADLOCKS = """
import os, time
import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STORE = "file://" + os.environ["FOLDER"] + "/store-" + os.environ["TORCHELASTIC_RESTART_COUNT"]

def load():
    while RANK == 1 and STORE.endswith("-0"):
        time.sleep(60)

def train():
    dist.init_process_group("gloo", init_method=STORE, rank=RANK, world_size=SIZE)
    load()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

train()
"""


@pytest.mark.extended
@pytest.mark.parametrize("launch", list(Launch))
async def test_a_deadlock_names_the_collective_and_the_ranks(pods: Gang, launch: Launch) -> None:
    assert isinstance(pods.band, CommandBand)
    *_, script = script_in(pods.band.folder, DEADLOCKS)
    pods.band.command = [sys.executable, "-u", script]
    if launch is Launch.PER_POD:  # both ranks below one launcher, with one output
        options = ["--standalone", "--nproc-per-node=2"]
        pods.band.command[2:2] = ["-m", "torch.distributed.run", *options]
    pods.record_fields = {"hang_timeout_seconds": 15.0}
    settings = LaunchSettings(launch=launch, watches_activity=True)
    count = 2 if launch is Launch.PER_GPU else 1
    await start_commands(pods, count, script="", launch=settings, ranks=2 // count)
    incident = await pods.incident()
    assert incident["fault_class"] == FaultClass.HANG
    line = DEADLOCKS[: DEADLOCKS.index("dist.all_reduce")].count("\n") + 1
    said = (f"rank 0 waits in all_reduce (train.py, line {line})", "rank 1 has not entered it")
    assert not missing(incident["cause"], *said), incident
    assert any("in all_reduce" in line for line in pods.leader.lines), "the stack is in the log"


@pytest.mark.parametrize(
    ("line", "where"), [("step {step} loss nan", "step 1"), ("{{'loss': nan}}", "the last lines")]
)
async def test_losses_that_are_no_numbers_are_noticed(pods: Gang, line: str, where: str) -> None:
    script = WAITS + f'for step in range(1, 5): print(f"{line}", flush=True)\nwait()'
    await start_commands(pods, 1, script=script)
    status = await pods.status()
    while status.remark is None:
        status = await pods.status(since=status.version)
    assert status.remark.kind is RemarkKind.LOSS_NOT_FINITE
    assert not missing(status.remark.sentence, "nan", where)


async def test_the_last_line_of_a_program_is_its_own(pods: Gang) -> None:
    """The hint about steps follows the hundredth line."""
    pods.record_fields = {"restarts_left": {FaultClass.APPLICATION: 0}}
    script = "print('line\\n' * 99 + 'disk quota exceeded')\nraise SystemExit(3)"
    await start_commands(pods, 1, script=script)
    assert await pods.ended() == [ExitCode.APPLICATION]
    assert not missing(pods.leader.text, "has a step: print lines")
    assert not missing(pods.leader.report.error, "exit code 3", "disk quota exceeded")


async def test_the_last_line_needs_no_line_feed(pods: Gang) -> None:
    """The pipe has no end yet, because a child of the shell holds it."""
    assert isinstance(pods.band, CommandBand)
    pods.record_fields = {"restarts_left": {FaultClass.APPLICATION: 0}}
    pods.band.command = ["/bin/sh", "-c", "sleep 600 & printf 'fatal: no config'; exit 3"]
    await start_commands(pods, 1, script="")
    assert await pods.ended() == [ExitCode.APPLICATION]
    assert not missing(pods.leader.report.error, "exit code 3; last line: fatal: no config")
