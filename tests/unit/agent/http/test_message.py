"""The parser against malformed bytes: it answers with a value or an HttpError, never otherwise."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drumline_agent.http.message import (
    MAX_HEAD_BYTES,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestHead,
    parse_request_head,
    parse_response_head,
)
from drumline_contract import MAX_BODY_BYTES

PROBE = b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:29400\r\nUser-Agent: kube-probe/1.36\r\n\r\n"


def test_a_probe_of_the_kubelet_is_understood() -> None:
    assert parse_request_head(PROBE) == RequestHead(
        method="GET",
        path="/healthz",
        headers={"host": "10.0.0.1:29400", "user-agent": "kube-probe/1.36"},
        content_length=0,
    )


@pytest.mark.parametrize(
    ("head", "status"),
    {
        "no end": (b"GET / HTTP/1.1\r\n", 400),
        "bare line feeds": (b"GET / HTTP/1.1\n\n\r\n\r\n", 400),
        "bare carriage return": (b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        "lower-case method": (b"get / HTTP/1.1\r\n\r\n", 400),
        "relative path": (b"GET x HTTP/1.1\r\n\r\n", 400),
        "absolute form": (b"GET http://a/ HTTP/1.1\r\n\r\n", 400),
        "space in path": (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        "long path": (b"GET /" + b"a" * 256 + b" HTTP/1.1\r\n\r\n", 400),
        "HTTP/2": (b"GET / HTTP/2.0\r\n\r\n", 400),
        "no version": (b"GET /\r\n\r\n", 400),
        "not ASCII": (b"GET / HTTP/1.1\r\nA: \xe9\r\n\r\n", 400),
        "NUL": (b"GET / HTTP/1.1\r\nA: \0\r\n\r\n", 400),
        "folded header": (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        "space before colon": (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
        "no header name": (b"GET / HTTP/1.1\r\n: b\r\n\r\n", 400),
        "repeated header": (b"GET / HTTP/1.1\r\nA: b\r\na: c\r\n\r\n", 400),
        "chunked": (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        "two lengths": (b"PUT / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400),
        "signed length": (b"PUT / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        "negative length": (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        "empty length": (b"PUT / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400),
        "GET with a body": (b"GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", 400),
        "large body": (
            b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
            413,
        ),
        "large head": (b"GET / HTTP/1.1\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    }.values(),
)
def test_what_parsers_disagree_on_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        parse_request_head(head)
    assert refused.value.status == status


def test_the_largest_body_is_accepted() -> None:
    head = parse_request_head(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES)
    assert head.content_length == MAX_BODY_BYTES


@given(st.binary(max_size=200))
@example(PROBE)
@example(b"\r\n\r\n")
def test_any_bytes_are_a_request_or_an_error(block: bytes) -> None:
    for end in (b"", b"\r\n\r\n"):
        for parse in (parse_request_head, parse_response_head):
            with suppress(HttpError):
                parse(block + end)


@given(position=st.integers(0, len(PROBE) - 1), byte=st.integers(0, 255))
def test_one_wrong_byte_never_smuggles_a_second_request(position: int, byte: int) -> None:
    changed = PROBE[:position] + bytes([byte]) + PROBE[position + 1 :]
    try:
        head = parse_request_head(changed)
    except HttpError:
        return
    assert head.content_length == 0
    assert len(head.headers) == 2
    # a tab is the one control character that a value may hold (RFC 9110, 5.5)
    assert all(text.replace("\t", " ").isprintable() for text in head.headers.values())


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=50)


@given(
    path=TOKENS,
    headers=st.dictionaries(TOKENS.map("x-".__add__), VALUES, max_size=5),
    body=st.binary(max_size=100),
)
def test_what_we_encode_we_parse(path: str, headers: dict[str, str], body: bytes) -> None:
    request = HttpRequest(method="PUT", path=f"/{path}", headers=headers, body=body)
    block, _, rest = request.encode(host="10.0.0.1:1").partition(b"\r\n\r\n")
    head = parse_request_head(block + b"\r\n\r\n")
    assert (head.method, head.path, head.content_length, rest) == (
        "PUT",
        f"/{path}",
        len(body),
        body,
    )
    assert headers.items() <= head.headers.items()

    block, _, rest = (
        HttpResponse(status=409, body=body, headers=headers).encode().partition(b"\r\n\r\n")
    )
    status, parsed, length = parse_response_head(block + b"\r\n\r\n")
    assert (status, length, rest) == (409, len(body), body)
    assert headers.items() <= parsed.items()
