"""`headgate top` in a real pseudo-terminal, before a real gateway."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway
from tests.observe.test_instruments import headgate as command
from tests.terminal.pty import ALTERNATE, HIDE, terminal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with double() as (_, engine), gateway(tmp_path_factory.mktemp("top"), {}, engine) as where:
        for number in range(3):
            headers = {"x-request-id": f"request-{number}"}
            assert ask(f"{where}/v1/chat/completions", chat("n=4 ttft=30", stream=True), headers=headers)[0] == 200
        yield where


def test_it_shows_the_gateway_heeds_its_keys_and_leaves_the_terminal_as_it_was(url: str) -> None:
    with terminal("top", "--url", url) as it:
        text = it.until("? help")
        assert it.said.index(ALTERNATE) < it.said.index("promises kept")
        assert HIDE in it.said
        assert "All promises kept · 1 of 1 replica" in text
        assert {"fast", "slow", "long", "batch"} <= set(text.split())
        assert not it.as_before
        since = it.press("\x1b[B\r")
        why = it.until("to the end", since=since)
        assert "Request request-" in why
        assert "prefill" in why
        since = it.press("\x1b")
        it.until("? help", since=since)
        since = it.press("?")
        it.until("choose one of the slowest requests", since=since)
        since = it.press("?")
        it.until("q quit", since=since)
        since = it.press("i")
        assert "headgate incident show 2" in it.until("recorded:", since=since) + it.until("-asked", since=since)
        it.press("q")
        assert it.left() == 0
        assert it.as_before


def test_it_fits_the_terminal_when_that_changes(url: str) -> None:
    with terminal("top", "--url", url, lines=40, columns=120) as it:
        it.until("TPOT p99")
        since = it.resize(12, 50)
        small = it.until("? help", since=since)
        assert "TPOT" not in small
        since = it.resize(5, 20)
        it.until("at least 40", since=since)
        since = it.resize(24, 80)
        it.until("TPOT p99", since=since)
        it.press("\x04")
        assert it.left() == 0
        assert it.as_before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_a_signal_leaves_the_terminal_as_it_was(url: str, number: signal.Signals, status: int) -> None:
    with terminal("top", "--url", url) as it:
        it.until("? help")
        it.process.send_signal(number)
        assert it.left() == status
        assert it.as_before


def test_ctrl_c_leaves(url: str) -> None:
    with terminal("top", "--url", url) as it:
        it.until("? help")
        it.press("\x03")
        assert it.left() == 0
        assert it.as_before


def test_an_exception_leaves_the_terminal_as_it_was_too(url: str, tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text(
        "from headgate.cli.terminal import top_client\n"
        "def broken(*_): raise RuntimeError('drawn wrongly')\n"
        "top_client._Top.shown = broken\n"
        f"top_client.top({url!r}, None)\n"
    )
    with terminal("top", program=program) as it:
        assert it.left() == 1
        assert "drawn wrongly" in it.said
        assert it.as_before


def test_a_gateway_that_goes_is_said_and_keys_are_heeded_meanwhile(tmp_path: Path) -> None:
    with double() as (_, engine), contextlib.ExitStack() as stack:
        where = stack.enter_context(gateway(tmp_path, {}, engine))
        with terminal("top", "--url", where) as it:
            it.until("? help")
            since = len(it.said)
            stack.close()
            gone = it.until("can't reach", since=since)
            assert "✗ no answer for" in gone
            since = it.press("?")
            it.until("back to the overview", since=since)
            it.press("q")
            assert it.left() == 0
            assert it.as_before


def test_without_a_terminal_it_is_one_frame(url: str) -> None:
    for more in ((), ("--once",)):
        done = command("top", "--url", url, *more)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "All promises kept · 1 of 1 replica" in done.stdout.splitlines()[0]
        assert "slowest" in done.stdout
        assert "q quit" not in done.stdout
    with terminal("top", "--once", "--url", url) as it:
        assert it.left() == 0
        assert ALTERNATE not in it.said
        assert "promises kept" in it.text


def test_without_a_gateway_it_is_one_line_and_the_terminal_is_left_alone() -> None:
    with terminal("top", "--url", "http://127.0.0.1:1") as it:
        assert it.left() == 1
        assert ALTERNATE not in it.said
        assert "can't reach http://127.0.0.1:1" in it.text
