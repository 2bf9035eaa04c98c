"""Words as people type them: where options stand, and what is said of a mistake."""

from __future__ import annotations

from itertools import product

import pytest

from drumline_cli.arguments import parser
from drumline_cli.command_line import arranged, parse
from drumline_cli.exit_codes import CommandExit
from drumline_cli.grammar import GROUPS, Command, commands
from drumline_cli.program import main
from tests.texts import missing


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the sentence that ends the process."""
    with pytest.raises(SystemExit) as ended:
        parse(parser("drumline"), words)
    assert ended.value.code == CommandExit.BAD_INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    sentence, see = shown.err.splitlines()
    assert see.startswith("See drumline")
    return sentence


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (("lst",), ("drumline: unknown command 'lst'", "did you mean list?")),
        (("squeue",), ("did you mean queue?",)),
        (("sbatch", "job.sh"), ("did you mean run?",)),
        (("requeue", "x"), ("did you mean retry?",)),
        (("compare", "a", "b"), ("did you mean diff?",)),
        (("lint", "job.yaml"), ("did you mean decide?",)),
        (("version",), ("did you mean --version?",)),
        (("xyzzy",), ("unknown command 'xyzzy'",)),
        (("--no-such",), ("unknown option --no-such",)),
        (("run", "--gpu", "8"), ("drumline run: unknown option --gpu", "did you mean --gpus?")),
        (("run", "--gpus-per-node", "8"), ("did you mean --gpus?",)),
        (("run", "--partition=a"), ("did you mean --queue?",)),
        (("run", "--secrt=a"), ("did you mean --secret?",)),
        (("clone", "x", "--claim", "a"), ("drumline clone: unknown option --claim",)),
        (("ui", "--port", "99999"), ("--port: 99999", "0 to 65535")),
        (("ui", "--port", "-1"), ("--port: -1", "0 to 65535")),
        (("logs", "a", "--seconds", "-5"), ("--seconds: -5", "0 to 86400")),
        (("history", "--limit", "-1"), ("--limit: -1", "1 to ")),
        (("check-nodes", "p", "--queue=q", "--image=i", "--wait", "nan"), ("--wait: nan",)),
        (("cp", "a", "claim:b", "--wait", "inf"), ("--wait: inf",)),
        (("plan", "llama-8b", "--oversubscription", "nan"), ("--oversubscription: nan",)),
        (("decide", "--namespace", "x"), ("unknown option --namespace", "no single namespace")),
        (("-n", "x", "nodes"), ("drumline nodes: unknown option -n", "no single namespace")),
        (("stop", "a", "b"), ("drumline stop: unexpected argument 'b'",)),
        (("run", "-N1", "python", "t.py"), ("drumline run: write -- before", "-- python")),
        (("run", "train.py"), ("write -- before the command 'train.py'",)),
        (("run", "-q", "a", "--image=b", "torchrun", "--nproc", "2"), ("-- torchrun",)),
        (("run", "-n", "a", "-d", "bash"), ("-- bash",)),
        (("shell", "job", "nvidia-smi"), ("drumline shell JOB -- nvidia-smi",)),
        (("clone", "job", "--set", "nodes=2", "python"), ("drumline clone JOB -- python",)),
        (("report", "x", "-o", "pdf"), ("drumline report: ", "'pdf'", "html")),
        (("run", "-G", "many"), ("drumline run: ", "-G/--gpus", "many")),
        (("stop",), ("drumline stop: ", "JOB")),
        (("check-nodes",), ("required: POOL, --queue",)),
    ],
)
def test_a_mistake_is_one_sentence_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    sentence = refused(capsys, *words)
    assert all(figure in sentence for figure in figures), sentence


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("-n", "team", "list"), ("list", "-n", "team")),
        (("--context=c", "list", "-A"), ("list", "--context=c", "-A")),
        (
            ("--kubeconfig", "f", "--as", "u", "why", "x"),
            ("why", "--kubeconfig", "f", "--as", "u", "x"),
        ),
        (("list", "-n", "team"), ("list", "-n", "team")),
        (("help", "run"), ("run", "--help")),
        (("help",), ("--help",)),
        (("--version",), ("--version",)),
        (("-n", "team"), ("-n", "team")),
    ],
)
def test_options_of_the_cluster_stand_before_or_after_the_command(
    words: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    assert arranged(words) == list(meant)


def test_help_lists_every_command_once_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(each.name for each in commands(parser("drumline")))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == CommandExit.DONE
    shown = capsys.readouterr().out
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert not missing(shown, "drumline COMMAND", *(f"{name} " for name in grouped))


def test_whole_numbers_have_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """A job of `run` and the nodes of a week have bounds of their own."""
    unbounded = {
        f"{each.name} {action.option_strings[-1]}"
        for each in commands(parser("drumline"))
        for action in each.parser._actions
        if action.type is int
    }
    jobs = {"run --nodes", "run --gpus", "run --max-parallel", "shell --gpus"}
    assert unbounded == {*jobs, "simulate --nodes"}
    plan = ("--batch=-4", "--top=0", f"--lora={10**20}", f"--gpus-per-node={10**20}")
    simulate = ("--jobs=0", f"--jobs={10**20}")
    for command, option in (*product(["plan"], plan), *product(["simulate"], simulate)):
        with pytest.raises(SystemExit) as ended:
            main([command, "llama-8b", option])
        assert ended.value.code == CommandExit.BAD_INPUT
        name, _, number = option.partition("=")
        assert f"argument {name}: {number}: want 1 to " in capsys.readouterr().err


def test_every_command_documents_its_exit_codes() -> None:
    for each in commands(parser("drumline")):
        epilog = each.parser.epilog or ""
        assert "exit codes:\n  0  " in epilog, each.name
        assert ("3  the job failed" in epilog) == (each.name in {"run", "logs"})


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("drumline ")


@pytest.mark.parametrize("command", commands(parser("drumline")), ids=lambda each: each.name)
def test_the_description_of_a_command_is_a_readable_paragraph(command: Command) -> None:
    description = command.parser.description or ""
    assert description[:1].isupper()
    assert max(map(len, description.splitlines())) <= 100
