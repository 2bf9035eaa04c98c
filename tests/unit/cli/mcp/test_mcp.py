"""The tools of an agent: what it is offered, what it asks, and what it cannot do."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest

from drumline_cli.arguments import parser
from drumline_cli.errors import NotAnswered
from drumline_cli.mcp.server import MOST_CHARACTERS, REVISIONS, answers
from drumline_cli.mcp.tools import TOOLS
from drumline_cli.program import main

VALUES = {"since": "30d", "by": "queue,user", "manifest": "{...}"}


def talk(*messages: Any) -> tuple[list[Any], list[list[str]]]:
    """What is answered, and the command lines that were run."""
    ran: list[list[str]] = []

    def run(words: Sequence[str]) -> str:
        ran.append(list(words))
        if "gone" in words:
            raise NotAnswered("trainingjob 'gone' not found")
        return '{"rows": []}\n'

    lines = [each if isinstance(each, str) else json.dumps(each) for each in messages]
    return [json.loads(line) for line in answers(lines, run)], ran


def request(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("asked", "agreed"), [(REVISIONS[1], REVISIONS[1]), ("1999-01-01", REVISIONS[0])]
)
def test_a_revision_is_agreed_on_and_notifications_have_no_answer(asked: str, agreed: str) -> None:
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    replies, _ = talk(request("initialize", protocolVersion=asked), initialized, request("ping", 2))
    assert [each["id"] for each in replies] == [1, 2]
    assert replies[0]["result"]["protocolVersion"] == agreed
    assert replies[1]["result"] == {}


def test_every_tool_reads_only_and_its_command_line_is_one_of_ours() -> None:
    [answer], _ = talk(request("tools/list"))
    listed = answer["result"]["tools"]
    assert [each["name"] for each in listed] == [tool.name for tool in TOOLS]
    assert all(each["annotations"]["readOnlyHint"] for each in listed)
    reading = {
        "list",
        "queue",
        "why",
        "report",
        "nodes",
        "share",
        "usage",
        "diff",
        "history",
        "decide",
    }
    for tool in TOOLS:
        full = tool.command_line({each.name: VALUES.get(each.name, "x") for each in tool.arguments})
        chosen = parser("drumline").parse_args(full)
        assert chosen.command in reading
        assert chosen.output == "json"


def test_a_call_is_a_command_line_and_its_output_the_answer() -> None:
    [answer], ran = talk(call("why_does_it_wait", job="big", namespace="team"))
    assert ran == [["why", "-o", "json", "--namespace=team", "big"]]
    assert answer["result"] == {
        "content": [{"type": "text", "text": '{"rows": []}\n'}],
        "isError": False,
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "needs the argument 'job'"),
        ({"job": "--kubeconfig=/etc/passwd"}, "job must match"),
        ({"job": "a\nb"}, "job must match"),
        ({"job": ["x"]}, "job must match"),
        ({"job": "x", "file": "/etc/passwd"}, "has no argument 'file'"),
        ({"job": "gone"}, "'gone' not found"),
    ],
)
def test_a_call_that_cannot_be_carried_out_says_why(
    arguments: dict[str, Any], problem: str
) -> None:
    [answer], _ = talk(call("why_does_it_wait", **arguments))
    assert answer["result"]["isError"]
    assert problem in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", -32700),
        ("[" * 100_000, -32700),
        ("1", -32600),
        ("x" * (MOST_CHARACTERS + 1), -32600),
        (request("resources/list"), -32601),
        (call("delete_job", job="x"), -32602),
    ],
)
def test_what_is_no_request_of_ours_is_an_error_of_the_protocol(message: Any, code: int) -> None:
    replies, ran = talk(message, request("ping", 7))
    assert replies[0]["error"]["code"] == code
    assert (replies[1]["id"], ran) == (7, [])


def test_the_program_answers_until_its_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [request("ping"), call("add_up_usage", by="colour")]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{json.dumps(x)}\n" for x in lines)))
    assert main(["mcp"]) == 0
    ping, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert ping == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert refused["result"]["isError"]
