"""`headgate chat` in a real pseudo-terminal and with a pipe, before a real gateway and a server that misbehaves."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from headgate.compiled import CHOSEN
from tests.engine.process import TESTED
from tests.gateway.test_gateway import double, eventually, gateway, seen
from tests.terminal.pty import terminal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway, and the double behind it."""
    unwatched = {"output": {"tasks": {"chat": {"runaway": "off"}}}}
    with double() as (_, engine), gateway(tmp_path_factory.mktemp("chat"), unwatched, engine) as url:
        yield url, engine


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": TESTED, CHOSEN: TESTED, "PATH": "", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, "-m", "headgate", "chat", *arguments],
        input=text, capture_output=True, text=True, env=environment, timeout=30,
    )  # fmt: skip


def test_a_conversation(places: tuple[str, str]) -> None:
    url, _ = places
    with terminal("chat", "--url", f"{url}/v1", "--lane", "slow") as it:
        it.until("> ")
        since = it.press("n=4 ttft=30 itl=10\r")
        said = it.until("not slow: that is", since=since)
        assert "w w w w" in said
        assert "tokens/s" in said
        assert "first token " in said
        assert "4 tokens" in said
        it.press("/help\r")
        it.until("forget the conversation")
        it.press("/what\r")
        it.until("/what is not known")
        since = it.press("/clear\r")
        it.until("forgotten", since=since)
        it.until("> ", since=it.said.rindex("forgotten"))
        it.press("\x04")
        assert it.left() == 0
        assert it.as_before


def test_ctrl_c_stops_the_answer_at_the_engine_and_a_second_one_leaves(places: tuple[str, str]) -> None:
    url, engine = places
    with terminal("chat", "--url", url) as it:
        it.until("> ")
        closed = len(seen(engine)["closed_at"])
        since = it.press("n=300 itl=50\r")
        it.until("w w w", since=since)
        since = it.press("\x03")
        assert "stopped" in it.until("> ", since=since)
        eventually(lambda: len(seen(engine)["closed_at"]) == closed + 1)
        # A key that comes between the prompt and the wait for keys is noticed with the next one.
        eventually(lambda: it.press("\x03") > 0 and it.ends(2.0))
        assert it.left() == 0
        assert it.as_before


def test_the_model_is_told_what_was_said_before_and_not_what_was_forgotten() -> None:
    with talking([b"one ", b"two"]) as (url, asked), terminal("chat", "--url", url, "--system", "Be brief.") as it:
        it.until("> ")
        for text, ends in (
            ("first", "2 tokens"),
            ("second", "2 tokens"),
            ("/clear", "forgotten"),
            ("third", "2 tokens"),
        ):
            since = it.press(f"{text}\r")
            it.until(ends, since=since)
        it.press("/quit\r")
        assert it.left() == 0
    told = [[message["content"] for message in each["messages"]] for each in asked]
    assert told == [
        ["Be brief.", "first"], ["Be brief.", "first", "one two", "second"], ["Be brief.", "third"],
    ]  # fmt: skip


def test_a_pipe_gets_one_answer_and_nothing_else(places: tuple[str, str]) -> None:
    url, _ = places
    done = piped("n=3\n", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "w w w \n", "")


@pytest.mark.parametrize(
    ("text", "arguments", "status", "said"),
    [
        ("", ("--url", "http://127.0.0.1:1"), 1, "the input is empty"),
        ("x", ("--url", "http://127.0.0.1:1"), 1, "can't reach http://127.0.0.1:1"),
        ("x", ("--url", "ftp://somewhere"), 2, "expected an address"),
    ],
)
def test_what_can_not_be_asked_is_one_line(text: str, arguments: tuple[str, ...], status: int, said: str) -> None:
    done = piped(text, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert said in done.stderr


def test_a_refusal_is_one_line_and_the_question_is_not_kept(places: tuple[str, str]) -> None:
    url, _ = places
    done = piped("n=1", "--url", url, "--model", "unheard-of")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "unheard-of" in done.stderr
    done = piped("n=1", "--url", url, "--max-tokens", "0")
    assert "max_tokens" in done.stderr


# -- servers that misbehave --------------------------------------------------------------------------------------


def said(piece: bytes) -> bytes:
    event = {"choices": [{"delta": {"content": piece.decode()}}]}
    return b"data: %b\n\n" % json.dumps(event).encode()


@contextmanager
def talking(
    pieces: list[bytes], *, raw: bool = False, status: int = 200, **headers: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that says these pieces, as tokens or raw lines, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece if raw else said(piece))
                self.wfile.flush()
            if not raw:
                self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"data: {\n\n"], "not as OpenAI's API says"),
        ([b'data: {"choices": {"a": 1}}\n\n'], "not as OpenAI's API says"),
        ([b'data: {"choices": [{"delta": {"content": 3}}]}\n\n'], "not as OpenAI's API says"),
        ([b'data: {"error": {"message": "out of\\nmemory"}}\n\n'], "ended with an error: out of memory"),
        ([b'data: {"error": "gone"}\n\n'], "ended with an error: gone"),
        ([b"data: \xff\n\n"], "not as OpenAI's API says"),
        ([b'data: {"choices": []}\n\n'], "broke off before its end"),
        ([], "broke off before its end"),
    ],
)
def test_an_answer_that_is_none_is_one_line(pieces: list[bytes], said: str) -> None:
    with talking(pieces, raw=True) as (url, _):
        done = piped("x", "--url", url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr


def test_a_full_gateway_says_when_to_come_again_and_the_conversation_goes_on() -> None:
    body = b'{"error": {"message": "lane fast is full"}}'
    with talking([body], raw=True, status=503, Retry_After="7") as (url, asked), terminal("chat", "--url", url) as it:
        it.until("> ")
        for _ in range(2):
            since = it.press("hello\r")
            it.until("lane fast is full (try again in 7 s)", since=since)
        it.press("/quit\r")
        assert it.left() == 0
    assert [len(each["messages"]) for each in asked] == [1, 1]


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    with talking([b"a\x1b]0;mine\x07b\x1b[2J", "\u009b2Jc\td".encode()]) as (url, _):
        done = piped("x", "--url", url)
    assert done.stdout == "a]0;mineb[2J2Jc\td\n"


def test_thoughts_are_for_people_and_an_answer_of_thoughts_alone_is_kept_nowhere() -> None:
    thought = b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    spoken = b'data: {"choices": [{"delta": {"content": "yes"}, "finish_reason": "length"}]}\n\n'
    with talking([thought, spoken, b"data: [DONE]\n\n"], raw=True) as (url, _):
        assert piped("x", "--url", url).stdout == "yes\n"
        with terminal("chat", "--url", url) as it:
            it.until("> ")
            since = it.press("x\r")
            said = it.until("cut at its limit", since=since)
            assert said.index("hm") < said.index("yes")
            it.until("> ", since=it.said.rindex("its limit"))
            it.press("\x04")
            assert it.left() == 0
            assert it.as_before
