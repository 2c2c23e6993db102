"""`headgate fit URL`: an engine whose profile is known, and servers that answer as they should not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from headgate.bench.fitting.engine_probe import EngineProbe, ProbeOptions
from headgate.bench.fitting.fit_run import Sizes, _asked, fit_server, fit_table
from headgate.machine.profile import PROFILES
from headgate.model.errors import StartupError, UsageError
from headgate.replica.description import Description
from headgate.wire.exchange import Exchange
from tests.bench.scene import LAST, MODELS, live, serving
from tests.engine.process import headgate
from tests.replica.kinds import double

H100 = PROFILES["h100-llama3-8b"]
TEXT = b'{"choices":[{"index":0,"text":"w ","finish_reason":null}]}'
END = b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}'


def options(url: str, **more: Any) -> ProbeOptions:
    return ProbeOptions(**{"url": url, "of": H100, "longest": 96, "concurrency": 4, "budget_s": 8.0, **more})


@pytest.mark.timeout(60)
def test_the_profile_of_an_emulated_engine_is_found_from_outside() -> None:
    with headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0") as (_, url):
        fitted = fit_server(options(url), Sizes("mine"), Console(quiet=True))
    cost = fitted.profile.cost
    assert fitted.profile.name == "mine"
    assert fitted.profile.model == "emulated-h100-llama3-8b"
    assert (fitted.profile.slots, fitted.profile.context) == (256, 131_072)  # as it says
    assert 0.008 < cost.fixed < 0.016  # the truth is 9.1 ms; a busy machine adds to it
    assert len(fitted.profile.decode_only.runs) > 0


class Server:
    """Answers each prompt after 2 ms, a token a millisecond; `odd` is asked for each request first."""

    def __init__(self, **usage: Any) -> None:
        self.usage = usage
        self.asked = 0

    def handle(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.respond(200, MODELS)
        elif exchange.method == "GET":
            exchange.respond(404, b"{}")
        else:
            self.asked += 1
            self.answer(exchange, msgspec.json.decode(exchange.body)["max_tokens"])

    def answer(self, exchange: Exchange, output: int) -> None:
        exchange.stream()
        asyncio.get_running_loop().call_later(0.002, self._next, exchange, output)

    def _next(self, exchange: Exchange, left: int) -> None:
        if left:
            exchange.event(TEXT)
            asyncio.get_running_loop().call_later(0.001, self._next, exchange, left - 1)
            return
        exchange.event(END)
        if self.usage:
            exchange.event(msgspec.json.encode({"choices": [], "usage": self.usage}))
        exchange.end(b"[DONE]")


class Refusing(Server):
    def answer(self, exchange: Exchange, output: int) -> None:
        exchange.respond(500, b'{"error":{"message":"out of memory"}}')


class Silent(Server):
    def answer(self, exchange: Exchange, output: int) -> None:
        exchange.stream()


class Empty(Server):
    def answer(self, exchange: Exchange, output: int) -> None:
        exchange.stream()
        exchange.event(LAST)
        exchange.end(b"[DONE]")


class AtOnce(Server):
    """All tokens in one write."""

    def answer(self, exchange: Exchange, output: int) -> None:
        exchange.stream()
        for _ in range(output):
            exchange.event(TEXT)
        exchange.event(END)
        exchange.end(b"[DONE]")


class Short(Server):
    """Takes no more than 40 prompt tokens, and refuses more than one at once."""

    busy = 0

    def answer(self, exchange: Exchange, output: int) -> None:
        if self.busy or len(msgspec.json.decode(exchange.body)["prompt"]) > 160:
            exchange.respond(503, b'{"error":{"message":"no room"}}')
            return
        self.busy += 1
        super().answer(exchange, output)
        asyncio.get_running_loop().call_later(0.004 * output + 0.02, self.free)

    def free(self) -> None:
        self.busy -= 1


@pytest.mark.parametrize("told", [-5, 10**15, 10**18, 0])
def test_a_count_of_tokens_that_can_not_be_is_not_believed(told: int) -> None:
    server = Server(prompt_tokens=told, completion_tokens=3)

    @live
    async def run() -> None:
        async with serving(server.handle) as url:
            fitted = await EngineProbe(options(url), lambda _: None).run()
            assert 0.0 < fitted.profile.cost.fixed < 0.02

    run()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (Refusing(), "does not answer as it should: out of memory"),
        (Silent(), "no end within the time allowed"),
        (Empty(), "does not answer as it should"),
    ],
)
def test_a_server_that_does_not_answer_is_said_in_time(server: Server, said: str) -> None:
    @live
    async def run() -> None:
        async with serving(server.handle) as url:
            with pytest.raises(StartupError) as caught:
                await EngineProbe(options(url, budget_s=0.5), lambda _: None).run()
            assert said in str(caught.value)
            assert server.asked == 1

    run()


@pytest.mark.parametrize("server", [AtOnce(), Short()])
def test_a_server_that_gives_too_little_is_said_and_no_profile_made_up(server: Server) -> None:
    @live
    async def run() -> None:
        async with serving(server.handle) as url:
            probe = EngineProbe(options(url, budget_s=3.0, concurrency=2), lambda _: None)
            with pytest.raises(StartupError, match="too few to fit a profile"):
                await probe.run()
            assert probe.notes
            assert server.asked < 200

    run()


def test_no_more_requests_are_sent_than_allowed() -> None:
    server = Server()

    @live
    async def run() -> None:
        async with serving(server.handle) as url:
            with pytest.raises(StartupError):
                await EngineProbe(options(url, requests=4), lambda _: None).run()
            assert server.asked <= 4 + 3

    run()


def test_what_a_server_says_of_its_sizes_is_taken() -> None:
    @live
    async def run() -> None:
        async with double("sglang") as engine:
            said, context, model = await _asked(options(engine.url))
            assert (said, context, model) == (Description(batch=4, kv_tokens=20480, ranks=1), 4096, "m")

    run()


def test_sizes_are_those_given_then_those_told_then_the_profiles() -> None:
    told = Description(batch=16, step_tokens=2048, kv_tokens=50_000, ranks=2)
    of = Sizes("x").of(H100, told, 4096)
    assert (of.name, of.slots, of.chunk_limit, of.step_tokens, of.kv_tokens, of.context) == (
        "x",
        8,
        2048,
        2048,
        50_000,
        4096,
    )
    of = Sizes("x", chunk=256, slots=4, kv_tokens=1000).of(H100, told)
    assert (of.slots, of.chunk_limit, of.step_tokens, of.kv_tokens, of.context) == (4, 256, 256, 1000, 1000)
    assert Sizes("x").of(H100).step_tokens == H100.step_tokens


def test_a_table_with_too_few_rows_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("isl,ttft_ms,itl_ms\n100,20,9\n")
    with pytest.raises(UsageError, match=r"t\.csv: 1 first tokens and 1 gaps are too few"):
        fit_table(path, H100)


def test_a_fit_of_a_disturbed_engine_is_not_to_be_trusted(tmp_path: Path) -> None:
    rows = ["isl,batch,ttft_ms,itl_ms"]
    rows += [f"{n},{b},{slow * (10 + n / 50)},{slow * 9}" for n in (100, 1000) for b in (1, 8) for slow in (1, 1, 5)]
    path, said = tmp_path / "t.csv", tmp_path / "said"
    path.write_text("\n".join(rows))
    with said.open("w") as file:
        fit_table(path, H100, Console(file=file, width=300))
    assert "do not trust it" in said.read_text()


def test_a_table_becomes_a_profile(tmp_path: Path) -> None:
    rows = ["isl,batch,ttft_ms,itl_ms"]
    rows += [f"{n},{b},{10 + n / 50},{9 + b / 20 + b * n / 20_000}" for n in (100, 500, 1000, 4000) for b in (1, 8, 32)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    told: list[str] = []
    console = Console(file=open(tmp_path / "said", "w"), width=300)  # noqa: SIM115
    fitted = fit_table(path, H100, console)
    console.file.close()
    told = (tmp_path / "said").read_text().split("\n")
    assert "16 observations" in told[0]
    assert fitted.error < 0.05
    assert json.dumps(fitted.profile.slots) == "256"
