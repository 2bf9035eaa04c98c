from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from drumline_client.environment import RankPlace, SnapshotPlace, rank_place
from drumline_client.run import Run
from drumline_client.snapshot_file import SnapshotError
from drumline_client.wire import (
    Hello,
    JoinRefused,
    PartBegun,
    PartSaved,
    ProposalAccepted,
    ProposalPassed,
    RestoreFailed,
    SaveAgreed,
    SaveProposal,
    StepReport,
    Welcome,
    WorkDone,
)
from tests.patience import HANG_SECONDS
from tests.played_agent import PlayedAgent, played_agent

TRAINER = Path(__file__).parents[3] / "trainer"
PLACE = RankPlace(rank=3, local_rank=1, world_size=4)


@pytest.fixture
def agent() -> Iterator[PlayedAgent]:
    with played_agent() as agent:
        yield agent


def wait_for_step(agent: PlayedAgent, step: int) -> StepReport:
    while (report := agent.wait_for(StepReport)).step != step:
        pass
    return report


def test_a_rank_that_is_elsewhere_says_so_once_and_has_no_snapshots(
    agent: PlayedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = SnapshotPlace(
        folder=Path("/s"),
        generation=1,
        attempt=0,
        restore_step=None,
        world_size=4,
        first_rank=0,
        ranks=2,
    )
    run = Run(agent.path, place=PLACE, snapshots=elsewhere)
    agent.wait_for(Hello)
    assert run.restore({}) is None
    assert run.snapshot({}, step=1) == 0.0
    assert ["rank 3 of 4 is not where" in text for text in caplog.messages] == [True]


def test_ranks_that_a_launcher_numbers_otherwise_do_not_go_on_from_some_of_the_snapshots(
    agent: PlayedAgent,
) -> None:
    other = SnapshotPlace(
        folder=Path("/s"),
        generation=1,
        attempt=1,
        restore_step=40,
        world_size=4,
        first_rank=0,
        ranks=2,
    )
    run = Run(agent.path, place=PLACE, snapshots=other)
    agent.wait_for(Hello)
    with pytest.raises(SnapshotError, match="was in another pod before"):
        run.restore({})
    assert agent.wait_for(RestoreFailed).step == 40


def test_outside_drumline_every_call_does_nothing() -> None:
    run = Run(None, place=rank_place({}))
    assert not run.inside
    with run:
        run.expect(10)
        run.step(1, loss=2.0, tokens=3)
        run.phase("saving")
        run.saving(1)
        run.saved(1, Path("/checkpoint"))
    assert not run.should_save()
    assert not run.should_stop()
    assert (run.rank, run.world_size, run.restarts, run.resized, run.checkpoint) == (
        (0, 1, 0, False, None)
    )


def test_outside_drumline_no_message_is_built() -> None:
    """A path is read where there is an agent to send it to."""

    class Path:
        def __fspath__(self) -> str:
            raise AssertionError("read")

        __str__ = __fspath__

    run = Run(None, place=PLACE)
    run.saved(3, Path())


def test_the_agent_hears_who_joins_and_how_far_it_is(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    run.expect(100)
    run.step(7, loss=2.5, tokens=512)
    run.step(8, loss=2, tokens=512)
    hello = agent.wait_for(Hello)
    assert (hello.rank, hello.local_rank, hello.world_size, hello.pid) == (3, 1, 4, os.getpid())
    report = wait_for_step(agent, 8)
    assert (report.loss, report.tokens, report.total_steps) == (2.0, 1024, 100)
    assert (report.phase, report.saves) == ("training", False)


def test_a_script_with_many_open_files_is_heard_too(agent: PlayedAgent) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as shards:
        for _ in range(1100):
            shards.enter_context(Path(os.devnull).open())
        run = Run(agent.path, place=PLACE)
        run.step(7)
        wait_for_step(agent, 7)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_script_hears_what_was_before(agent: PlayedAgent) -> None:
    agent.greeting = Welcome(
        v=1,
        restarts=2,
        previous_world_size=8,
        checkpoint_step=40,
        checkpoint_path="/c/40",
    )
    run = Run(agent.path, place=PLACE)
    assert run.inside
    assert (run.restarts, run.resized, run.checkpoint) == (2, True, (40, "/c/40"))


def test_a_notice_is_saved_at_the_agreed_step_and_acknowledged(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    run.step(5)
    assert not run.should_save()
    agent.say(SaveProposal(id="spot/1", step=7, leave=True))
    assert agent.wait_for(ProposalAccepted).id == "spot/1"
    run.step(6)
    assert not run.should_save()
    agent.say(SaveAgreed("spot/1"))
    run.step(7)
    assert run.should_save()  # waits here, if the agreement is still on its way
    assert run.should_stop()
    run.saved(7, Path("/c/7"))
    assert agent.wait_for(PartSaved) == PartSaved(step=7, path="/c/7")


def test_a_proposal_that_comes_too_late_is_said_to_be(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    run.step(9)
    run.should_save()
    agent.say(SaveProposal(id="spot/1", step=9))
    assert agent.wait_for(ProposalPassed).answered == 9


def test_a_part_written_in_the_background_and_one_that_fails(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    run.saving(4)
    run.saved(4, error="disk full")
    assert agent.wait_for(PartBegun) == PartBegun(step=4)
    assert agent.wait_for(PartSaved) == PartSaved(step=4, error="disk full")


def test_done_comes_after_the_newest_step(agent: PlayedAgent) -> None:
    with Run(agent.path, place=PLACE) as run:
        run.step(10)
    report = wait_for_step(agent, 10)
    assert report.phase == "done"
    assert agent.wait_for(WorkDone) == WorkDone()


class Tensor:
    """Of a device: reading it waits."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.read = 0

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        self.read += 1
        return self.value


def test_a_tensor_is_read_rarely_and_one_of_many_values_not_at_all(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    loss = Tensor(1.5)
    for step in range(100):
        run.step(step, loss=loss)
    assert loss.read == 1
    assert wait_for_step(agent, 99).loss == 1.5

    class Several(Tensor):
        def __float__(self) -> float:
            raise ValueError("only one element can be converted")

    other = Run(agent.path, place=PLACE)
    other.step(1, loss=Several(0.0))
    assert wait_for_step(agent, 1).loss is None


def test_an_unknown_phase_is_refused_outside_as_inside() -> None:
    with pytest.raises(ValueError, match="unknown phase 'lunch'"):
        Run(None, place=PLACE).phase("lunch")


def test_a_refused_process_trains_on(agent: PlayedAgent, caplog: pytest.LogCaptureFixture) -> None:
    agent.greeting = JoinRefused(reason="rank 3 has joined already, as process 7")
    run = Run(agent.path, place=PLACE)
    assert "rank 3 has joined already" in caplog.text
    assert not run.inside
    assert not run.should_save()
    run.saved(1)


def test_without_an_agent_there_is_a_warning_and_the_script_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(str(tmp_path / "nobody.sock"), place=PLACE)
    assert caplog.text.count("training continues without it") == 1
    run.step(1)
    assert not run.should_save()
    run.saved(1, "/c")  # and waits for nothing


def test_a_lost_agent_ends_the_wait_at_a_boundary(agent: PlayedAgent) -> None:
    run = Run(agent.path, place=PLACE)
    run.step(1)
    agent.say(SaveProposal(id="spot/1", step=1))
    agent.wait_for(ProposalAccepted)
    answers: list[bool] = []
    training = threading.Thread(target=lambda: answers.append(run.should_save()))
    training.start()
    agent.hang_up()
    training.join(HANG_SECONDS)
    assert answers == [False]


def test_an_agent_that_sends_no_messages_is_left_alone(
    agent: PlayedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(agent.path, place=PLACE)
    agent.say_bytes(b"{" * 5000)
    while agent.heard.get(timeout=120) is not None:
        pass
    run.saved(1, "/c")
    assert "is lost" in caplog.text


FORKED = """
import os, drumline_client
run = drumline_client.join()
assert drumline_client.join() is run
run.step(1)
if (child := os.fork()) == 0:
    run.step(2)
    run.saved(2, "/from/the/child")
    os._exit(10 * run.inside + run.should_save() + (drumline_client.join() is run))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
run.step(3)
run.saved(3, "/from/the/parent")
"""


def test_a_forked_child_leaves_the_agent_to_its_parent(agent: PlayedAgent) -> None:
    """A data loader's worker; one that joins itself is a rank of its own."""
    run_script(FORKED, DRUMLINE_AGENT=agent.path, RANK="1", WORLD_SIZE="2")
    assert agent.wait_for(PartSaved).path == "/from/the/parent"


def test_the_last_step_of_a_script_is_heard(agent: PlayedAgent) -> None:
    agent.greeting = Welcome(v=1, report_seconds=30.0)
    run_script("import drumline_client; drumline_client.join().step(5)", DRUMLINE_AGENT=agent.path)
    wait_for_step(agent, 5)


def test_it_is_python_3_9_and_the_standard_library() -> None:
    """Pyright holds the language and the library to 3.9; this, that nothing else is loaded."""
    script = "import sys, drumline_client; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(run_script(script).split())
    bare = set(run_script("import sys; print(*{n.split('.')[0] for n in sys.modules})").split())
    assert loaded - bare - set(sys.stdlib_module_names) == {"drumline_client"}


def run_script(script: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(TRAINER), **variables}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, PLACE),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
            },
            PLACE,
        ),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}, PLACE),
        (  # a JAX process has all GPUs of its pod: WORLD_SIZE counts GPUs
            {"WORLD_SIZE": "8", "JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"},
            RankPlace(rank=1, local_rank=0, world_size=2),
        ),
        (  # mpirun's ranks inherit what the pod has
            {
                "WORLD_SIZE": "4",
                "JAX_PROCESS_ID": "1",
                "JAX_NUM_PROCESSES": "2",
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
            },
            PLACE,
        ),
        ({"RANK": "x"}, RankPlace(rank=0, local_rank=0, world_size=1)),
        ({"RANK": "5"}, RankPlace(rank=5, local_rank=0, world_size=6)),
    ],
)
def test_the_launcher_s_variables_say_which_rank_it_is(
    variables: dict[str, str], place: RankPlace
) -> None:
    assert rank_place(variables) == place


def test_arguments_come_before_variables() -> None:
    assert rank_place({"RANK": "0", "WORLD_SIZE": "1"}, rank=2, world_size=8) == RankPlace(
        rank=2, local_rank=0, world_size=8
    )
