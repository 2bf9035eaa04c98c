"""The agent's bundle in a root filesystem that has nothing: no Python, no C library, no shell."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from drumline_agent.programs.install import install
from drumline_contract import BUNDLE_FOLDER, Env, ExitCode, Launch, LaunchSettings
from tests.faults.agent.agents import JOB_UID, TOKEN, Agent, Band
from tests.faults.agent.commands import launched
from tests.texts import missing
from tools.cluster.context import ensure_bundle, image_cache

pytestmark = pytest.mark.extended(keep=1)

PYTHON = f"{BUNDLE_FOLDER}/bin/python3"
CHROOT = ["/usr/sbin/chroot"]
LARGEST_MEBIBYTES = 40


@pytest.fixture(scope="session")
def bundle() -> Path:
    """As the throwaway cluster's images carry it."""
    with image_cache():
        return ensure_bundle()


@pytest.fixture
def root(tmp_path: Path, bundle: Path) -> Path:
    """The root filesystem of an image with nothing in it, after the init container."""
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    (root / "dev/null").touch()
    target = root / BUNDLE_FOLDER.removeprefix("/")
    target.mkdir(parents=True)
    variables = {"DRUMLINE_GANG_FOLDER": str(root / "gang"), Env.POD_IP: "127.0.0.1"}
    assert install(variables, source=bundle, target=target) == ExitCode.OK
    assert "127.0.0.1" in (root / "gang/hosts").read_text()
    return root


@pytest.fixture
async def band(tmp_path: Path) -> AsyncIterator[Band]:
    band = Band(folder=tmp_path)
    yield band
    await band.stop()


async def start_in(root: Path, band: Band, *command: str, preload: tuple[str, ...] = ()) -> Agent:
    """The agent of pod 0 inside the root, with a library path that an image might set."""
    apart = [] if os.geteuid() == 0 else ["/usr/bin/unshare", "--user", "--map-root-user"]
    address = band.address(0)
    (root / "token").write_bytes(TOKEN)
    environment: Mapping[str, str] = {
        "PATH": "/nowhere",
        "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu:/lib",
        "PYTHONHOME": "/nowhere",
        Env.NAMESPACE: "default",
        Env.JOB: "job",
        Env.JOB_UID: JOB_UID,
        Env.POD_UID: "pod-0",
        Env.POD_IP: address,
        Env.INDEX: "0",
        Env.GENERATION: "1",
        "DRUMLINE_AGENT_ADDRESS": address,
        "DRUMLINE_TOKEN_FILE": "/token",
        "DRUMLINE_GANG_FOLDER": "/gang",
        "DRUMLINE_SNAPSHOT_FOLDER": "/snapshots",
        "DRUMLINE_TERMINATION_LOG": "/termination-log",
        **launched(LaunchSettings(launch=Launch.PER_GPU, preload=preload)),
    }
    process = await asyncio.create_subprocess_exec(
        *(*apart, *CHROOT, str(root), PYTHON, "-I", "-m", "drumline_agent"),
        *("command", "--", *command),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    agent = Agent(index=0, address=address, folder=root, process=process, pod_uid="pod-0")
    agent.listen()
    band.agents.append(agent)
    await agent.event("agent_ready")
    await agent.push(band.record(agents=1, ranks=1))
    return agent


async def test_the_agent_runs_a_command_in_an_image_with_nothing_in_it(
    root: Path, band: Band
) -> None:
    shown = "import os; print(os.environ['RANK'], os.environ['PATH'], os.environ['PYTHONHOME'])"
    agent = await start_in(root, band, PYTHON, "-I", "-c", shown)
    assert await agent.ended() == 0, agent.text
    assert "0 /nowhere /nowhere" in agent.lines


DIES_ONCE = """
import os, sys, time
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "decimal" in sys.modules)
print("iter 1: loss 1.0000, time 1.00ms, mfu 1.00%", flush=True)
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(60)
"""


async def test_standbys_find_their_program_in_the_bundle(root: Path, band: Band) -> None:
    (root / "train.py").write_text(DIES_ONCE)
    agent = await start_in(root, band, PYTHON, "-I", "/train.py", preload=("decimal",))
    pids = (await agent.event("ranks_started"))["pids"]
    await agent.event("standby_ready")
    os.kill(pids["0"], signal.SIGKILL)
    assert await agent.ended() == 0, agent.text
    assert [line for line in agent.lines if line.startswith("attempt")] == [
        "attempt 0 False",
        "attempt 1 True",
    ]


async def test_an_image_without_python_is_a_sentence(root: Path, band: Band) -> None:
    agent = await start_in(root, band, "python", "train.py")
    assert await agent.ended() == ExitCode.CONFIG
    assert not missing(agent.text, "'python'")


def test_every_library_is_looked_for_in_the_bundle_and_it_is_small(bundle: Path) -> None:
    size = sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file())
    assert size < LARGEST_MEBIBYTES << 20
    names = {file.name for file in (bundle / "lib").iterdir()}
    assert any(re.match(r"ld-(linux|musl)", name) for name in names)
    assert any(name.startswith("libc.") for name in names)


def test_an_image_without_a_bundle_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert install({}, source=tmp_path / "missing", target=target) == ExitCode.CONFIG
    assert "carries no agent for the images of others" in capsys.readouterr().err
    assert not target.exists()
