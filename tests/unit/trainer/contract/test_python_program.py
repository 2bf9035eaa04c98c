"""Which commands are Python programs, and their parts."""

from __future__ import annotations

import pytest

from drumline_contract import ContractError, PythonProgram, is_module_name


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("python train.py", (("python",), ("train.py",), ())),
        ("/env/bin/python3.11 -u train.py -m x", (("/env/bin/python3.11", "-u"), ("train.py",))),
        ("python3 -m package.train --lr 1", (("python3",), ("-m", "package.train"))),
        ("python3 -I -Ou -m train", (("python3", "-I", "-Ou"), ("-m", "train"))),
    ],
)
def test_a_python_program_has_parts(command: str, parts: tuple[tuple[str, ...], ...]) -> None:
    words = command.split()
    program = PythonProgram.parse(words)
    assert (program.interpreter, program.target) == parts[:2]
    assert [*program.interpreter, *program.own_arguments] == words


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("", "begins with ''"),
        ("torchrun train.py", "begins with 'torchrun'"),
        ("pythonic train.py", "begins with 'pythonic'"),
        ("python3", "goes on with ''"),
        ("python3 -c pass", "goes on with '-c'"),
        ("python3 -X dev train.py", "goes on with '-X'"),
        ("python3 train", "goes on with 'train'"),
        ("python3 -m a-b", "goes on with '-m'"),
        ("python3 -m", "goes on with '-m'"),
        ("python3 -x.py", "goes on with '-x.py'"),
    ],
)
def test_what_is_another_command_is_told_so(command: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=r"must be a Python program") as raised:
        PythonProgram.parse(command.split())
    assert complaint in str(raised.value)


@pytest.mark.parametrize("name", ["torch", "_a.b1", "a" * 128])
def test_names_of_modules(name: str) -> None:
    assert is_module_name(name)


@pytest.mark.parametrize("name", ["", "a-b", "a..b", ".a", "1a", "a\n", "a b", "a" * 129])
def test_what_no_module_is_called(name: str) -> None:
    assert not is_module_name(name)
