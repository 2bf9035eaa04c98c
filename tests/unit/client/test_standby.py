"""A standby that becomes a script, against the interpreter that is started with that script."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drumline_client import environment
from tests.patience import HANG_SECONDS
from tests.texts import missing

PROGRAM = Path(environment.__file__).with_name("standby.py")
EARLY = (
    "import os, sys\nSEEN = os.environ.get('ROUND'), sys.argv[:]\nos.environ['BY_IMPORT'] = '1'\n"
)
SHOWS = """
import json, multiprocessing, os, sys
early = sys.modules.get("early")

def twice(number: int):
    return 2 * number

def facts():
    return {
        "name": __name__,
        "file": __file__,
        "argv": sys.argv,
        "path0": sys.path[0],
        "cwd": os.getcwd(),
        "round": os.environ.get("ROUND"),
        "gone": os.environ.get("GONE"),
        "by_import": os.environ.get("BY_IMPORT"),
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "names": sorted(name for name in globals() if not name.startswith("__")),
        "annotation": str(twice.__annotations__["number"]),
    }

if __name__ == "__main__":
    print(json.dumps({"seen": early and early.SEEN}))
    import early
    print(json.dumps(facts()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps({"in a child": pool.map(twice, [21])}))
"""


@dataclass
class Waiting:
    """A standby, and the agent's end of its socket."""

    process: subprocess.Popen[str]
    channel: socket.socket
    _unread: bytes = field(default=b"")

    def said(self) -> dict[str, Any]:
        """Its next message; empty: it has closed its end."""
        while b"\n" not in self._unread:
            chunk = self.channel.recv(65536)
            if not chunk:
                return {}
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def tell(
        self, argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str | None] | None = None
    ) -> None:
        message = {"argv": list(argv), "cwd": str(cwd), "environ": dict(environ or {})}
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def ended(self) -> tuple[int, str, str]:
        """Exit code and what it has printed on either stream."""
        output, errors = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, output, errors


@contextmanager
def standby(
    folder: Path, command: Sequence[str], *options: str, modules: str = "early", **variables: str
) -> Generator[Waiting]:
    """Beside a rank that runs this command in this folder."""
    ours, theirs = socket.socketpair()
    ours.settimeout(HANG_SECONDS)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, *options, str(PROGRAM), str(theirs.fileno()), modules, *command],
            cwd=folder,
            env=variables,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        try:
            yield Waiting(process=process, channel=ours)
        finally:
            process.kill()
            process.communicate()


def ordinary(folder: Path, command: Sequence[str], **variables: str) -> tuple[int, str, str]:
    """Exit code and output of a process that is started with the command."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script, and a module that stands beside it."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SHOWS)
    (code / "early.py").write_text(EARLY)
    return tmp_path


@pytest.mark.parametrize("form", [["code/train.py"], ["-m", "train"]], ids=["script", "module"])
def test_it_becomes_the_program_that_an_interpreter_would_run(
    folder: Path, form: list[str]
) -> None:
    cwd = folder / "code" if form[0] == "-m" else folder
    command = [*form, "--lr", "3"]
    expected = ordinary(cwd, command, ROUND="1")

    with standby(cwd, [*form, "--lr", "2"], ROUND="0", GONE="x") as waiting:
        assert waiting.said() == {"ready": True, "reason": ""}
        waiting.tell(command, cwd=cwd, environ={"ROUND": "1", "GONE": None})
        assert waiting.said() == {"taken": True}
        code, output, errors = waiting.ended()

    assert (code, errors) == (0, "")
    seen, facts, child = map(json.loads, output.splitlines())
    assert seen == {"seen": ["0", ["-m" if form[0] == "-m" else form[0], "--lr", "2"]]}
    assert expected[1].splitlines()[1:] == [json.dumps(facts), json.dumps(child)]


def test_what_it_was_told_alone_is_another_than_before(folder: Path) -> None:
    with standby(folder, ["code/train.py"]) as waiting:
        waiting.said()
        waiting.tell(["train.py"], cwd=folder / "code")
        _, output, _ = waiting.ended()
    facts = json.loads(output.splitlines()[1])
    assert (facts["argv"], facts["cwd"]) == (["train.py"], str(folder / "code"))
    assert facts["by_import"] == "1"  # what an import sets stays set


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(7)", 7), ("raise ValueError('boom')", 1), ("os.kill(os.getpid(), 15)", -15)],
)
def test_it_ends_as_the_script_ends(folder: Path, ending: str, code: int) -> None:
    (folder / "train.py").write_text(f"import os, sys\nprint('printed')\n{ending}\n")
    expected = ordinary(folder, ["train.py"])
    with standby(folder, ["train.py"], modules="json") as waiting:
        waiting.said()
        waiting.tell(["train.py"], cwd=folder)
        ended = waiting.ended()
    assert ended[:2] == expected[:2]
    assert ended[0] == code
    assert ended[2].splitlines()[-2:] == expected[2].splitlines()[-2:]


def test_threads_and_exit_handlers_find_the_script_s_module_after_its_last_line(
    folder: Path,
) -> None:
    (folder / "train.py").write_text(
        "import atexit, sys\nANSWER = 42\n"
        "atexit.register(lambda: print(sys.modules['__main__'].ANSWER))\n"
    )
    with standby(folder, ["train.py"], modules="json") as waiting:
        waiting.said()
        waiting.tell(["train.py"], cwd=folder)
        assert waiting.ended() == (0, "42\n", "")


def test_a_script_that_is_not_there_ends_it_as_it_ends_an_interpreter(folder: Path) -> None:
    with standby(folder, ["gone.py"], modules="json") as waiting:
        waiting.said()
        waiting.tell(["gone.py"], cwd=folder)
        code, _, errors = waiting.ended()
    assert code == ordinary(folder, ["gone.py"])[0] == 2
    assert f"can't open file '{folder}/gone.py'" in errors


def test_isolated_it_looks_for_no_module_beside_the_script(folder: Path) -> None:
    with standby(folder, ["code/train.py"], "-I") as waiting:
        reason = waiting.said()["reason"]
    assert not missing(reason, "ModuleNotFoundError", "'early'")


def test_a_module_of_ours_is_none_of_the_user_s(folder: Path) -> None:
    with standby(folder, ["code/train.py"], modules="wire") as waiting:
        assert waiting.said()["reason"].startswith("import wire: ModuleNotFoundError")
    (folder / "code" / "ours.py").write_text(
        "import sys\nprint([name for name in sys.modules if 'drumline' in name])\n"
    )
    with standby(folder, ["code/ours.py"], modules="json") as waiting:
        waiting.said()
        waiting.tell(["code/ours.py"], cwd=folder)
        assert waiting.ended() == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('boom')", "import early: ValueError: boom"),
        ("import sys\nsys.exit(3)", "import early: SystemExit: 3"),
    ],
)
def test_an_import_that_fails_is_named(folder: Path, text: str, reason: str) -> None:
    (folder / "code" / "early.py").write_text(text)
    with standby(folder, ["code/train.py"], modules="json,early") as waiting:
        assert waiting.said() == {"ready": False, "reason": reason}
        assert waiting.said() == {}
        assert waiting.ended()[0] == 1


@pytest.mark.parametrize("made", [True, False])
def test_it_is_of_no_use_where_the_import_made_a_cuda_context(folder: Path, made: bool) -> None:
    package = folder / "code" / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch import cuda\n")
    (package / "cuda.py").write_text(f"def is_initialized():\n    return {made}\n")
    with standby(folder, ["code/train.py"], modules="torch") as waiting:
        said = waiting.said()
    assert said["ready"] is not made
    assert ("CUDA context" in said["reason"]) is made


def test_it_ends_with_the_agent_that_would_use_it(folder: Path) -> None:
    with standby(folder, ["code/train.py"]) as waiting:
        waiting.said()
        waiting.channel.shutdown(socket.SHUT_WR)
        assert waiting.ended() == (0, "", "")


def test_no_descriptor_of_it_is_left_to_the_script(folder: Path) -> None:
    (folder / "train.py").write_text("import os\nprint(sorted(os.listdir('/proc/self/fd'))[:4])\n")
    with standby(folder, ["train.py"], modules="json") as waiting:
        waiting.said()
        waiting.tell(["train.py"], cwd=folder)
        assert waiting.ended() == ordinary(folder, ["train.py"])
