"""What ranks print and what they find around them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from drumline_contract.prompt_answers import encode
from tests.faults.agent.agents import JOB_UID, Band

pytestmark = pytest.mark.extended(keep=2)

VARIABLES = {"DRUMLINE_RANK_MODULE": "tests.faults.agent.scripted_rank"}


async def test_every_line_is_prefixed_cut_and_readable_in_its_order(band: Band) -> None:
    lines = [
        "import os, sys",
        "print('first')",
        "sys.stderr.write('second\\n')",
        "os.write(1, b'\\xff\\xfe third\\n')",
        "print('x' * 20_000)",
        "os.write(1, b'no line feed')",
    ]
    variables = {**VARIABLES, "SCRIPT": json.dumps({"0": lines, "1": lines})}
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(band.record(agents=1, ranks=2))

    assert await agent.ended() == 0
    expected = ["first", "second", "\ufffd\ufffd third", "x" * 16_384 + " [cut]", "no line feed"]
    assert (agent.printed(0), agent.printed(1)) == (expected, expected)


async def test_a_rank_finds_the_variables_of_torch_and_a_clean_process(band: Band) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    lines = [
        "import os, signal, threading",
        f"print(*(os.environ[name] for name in {names}))",
        "print(os.getsid(0) == os.getpid(), threading.active_count())",
        "print(*(signal.getsignal(n).name for n in (15, 17)), signal.pthread_sigmask(0, []))",
        "folder = '/proc/self/fd'",
        "links = [f'{folder}/{number}' for number in os.listdir(folder)]",
        "print(*sorted(os.readlink(one).split(':')[0] for one in links if os.path.lexists(one)))",
    ]
    variables = {**VARIABLES, "SCRIPT": json.dumps({"3": lines})}
    agents = await band.start_ready(2, variables=variables)
    await agents[0].push(band.record(agents=2, ranks=2))

    assert [await agent.ended() for agent in agents] == [0, 0]
    assert agents[1].printed(3) == [
        f"3 4 1 2 {band.address(0)} 29500",
        "True 2",
        "SIG_DFL SIG_DFL set()",
        "/dev/null pipe pipe pipe pipe",
    ]


async def test_a_placement_has_the_acknowledged_checkpoint_and_its_owner(band: Band) -> None:
    lines = ["print(placement.owner, placement.acknowledged_step, placement.acknowledged_digest)"]
    [agent] = await band.start_ready(1, variables={**VARIABLES, "SCRIPT": json.dumps({"0": lines})})
    record = replace(band.record(agents=1, ranks=1), restore_step=40, restore_digest="abc")
    await agent.push(record)

    assert await agent.ended() == 0
    assert agent.printed(0) == [f"{JOB_UID} 40 abc"]


@pytest.mark.parametrize(
    ("set_by_user", "seen"), [({}, "ERROR"), ({"TORCH_CPP_LOG_LEVEL": "INFO"}, "INFO")]
)
async def test_torch_is_quiet_unless_the_user_wants_to_hear_it(
    band: Band, set_by_user: dict[str, str], seen: str
) -> None:
    lines = ["import os", "print(os.environ['TORCH_CPP_LOG_LEVEL'])"]
    variables = {**VARIABLES, **set_by_user, "SCRIPT": json.dumps({"0": lines})}
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(band.record(agents=1, ranks=1))

    assert await agent.ended() == 0
    assert agent.printed(0) == [seen]


async def test_continued_prompts_are_in_the_report_of_the_pod(band: Band) -> None:
    answers = encode(1, [("a", "b"), ("c", "d")])
    lines = [
        "from drumline_agent.rank_protocol.messages import PromptsContinued",
        "beat(1)",
        f"say(PromptsContinued(answers={answers!r}))",
        "done(1)",
    ]
    variables = {**VARIABLES, "SCRIPT": json.dumps({"0": lines})}
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(band.record(agents=1, ranks=1))

    assert await agent.ended() == 0
    assert agent.report.progress.answers == answers
