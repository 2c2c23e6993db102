"""`tune` against a server whose law is known: 10 ms, 0.1 ms a token, four at once."""

import asyncio
import json
import re
from collections import deque
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from headgate.bench.tune import promises, run, tune
from headgate.bench.tuned import TuneOptions
from headgate.config.file import parse
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.wire.exchange import Exchange
from tests.bench.scene import LAST, MODELS, TOKEN, live, serving

FIXED_S, TOKEN_S, SLOTS, CONTEXT = 0.010, 1e-4, 4, 3000


class Server:
    """One at a time in each slot; a request that finds every slot taken waits in line."""

    def __init__(self) -> None:
        self.busy = 0
        self.line: deque[tuple[Exchange, int, int]] = deque()
        self.asked = 0

    def handle(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.respond(200, MODELS)
            return
        body = msgspec.json.decode(exchange.body)
        tokens = len(body["messages"][0]["content"]) // 4
        self.asked += 1
        if tokens > CONTEXT:
            exchange.respond(400, b'{"error":{"message":"too long for the context","code":"context_length_exceeded"}}')
            return
        exchange.stream()
        self.line.append((exchange, tokens, body["max_tokens"]))
        self._look()

    def _look(self) -> None:
        while self.line and self.busy < SLOTS:
            exchange, tokens, output = self.line.popleft()
            self.busy += 1
            asyncio.get_running_loop().call_later(FIXED_S + TOKEN_S * tokens, self._begin, exchange, tokens, output)

    def _begin(self, exchange: Exchange, tokens: int, output: int) -> None:
        exchange.event(TOKEN)
        asyncio.get_running_loop().call_later(0.001 * output, self._end, exchange, tokens, output)

    def _end(self, exchange: Exchange, tokens: int, output: int) -> None:
        for _ in range(output - 1):
            exchange.event(TOKEN)
        exchange.event(LAST)
        usage = {"prompt_tokens": tokens, "completion_tokens": output}
        exchange.event(msgspec.json.encode({"choices": [], "usage": usage}))
        exchange.end(b"[DONE]")
        self.busy -= 1
        self._look()


@live
async def test_the_lines_of_a_known_server_are_found() -> None:
    server = Server()
    async with serving(server.handle) as url:
        options = TuneOptions(urls=(url,), sla=("ttft:60",), budget_s=10.0, output=64, longest=4096)
        said: list[str] = []
        found = await tune(options, said.append)
    assert found.prefill is not None
    assert found.advice is not None
    assert 50 <= (found.prefill.dominates_from or 0) <= 200, "100 by the law"
    assert found.advice.slots is not None
    assert 2 <= found.advice.slots <= 7, "four run; of eight, four wait for 80 ms"
    assert any("too long for the context" in note for note in found.notes)
    assert found.asked == server.asked
    assert any("at once" in line for line in said)
    assert any("alone" in line for line in said)


@live
async def test_it_says_how_long_it_will_take_and_takes_no_longer() -> None:
    server = Server()
    async with serving(server.handle) as url:
        said: list[str] = []
        began = monotonic()
        await tune(TuneOptions(urls=(url,), sla=("ttft:60",), budget_s=4.0, longest=256), said.append)
        took_s = monotonic() - began
    assert "takes 4 s at most (--budget)" in said[0]
    assert any("s more at most" in line for line in said)
    left = [int(found[1]) for line in said if (found := re.search(r"; (\d+) s left at most", line))]
    assert left == sorted(left, reverse=True)
    assert left
    assert took_s <= 4.0 + 1.0


@live
async def test_traffic_is_bounded() -> None:
    server = Server()
    async with serving(server.handle) as url:
        found = await tune(TuneOptions(urls=(url,), requests=25, budget_s=8.0), lambda text: None)
    assert server.asked <= 25 + 4, "those under way when the bound is reached"
    assert any("--requests" in note for note in found.notes)


@live
async def test_what_is_found_is_a_config_a_file_and_a_page(tmp_path: Path) -> None:
    server = Server()
    table, page, out = tmp_path / "tune.json", tmp_path / "tune.html", Console(record=True, width=120)
    async with serving(server.handle) as url:
        options = TuneOptions(urls=(url,), sla=("ttft:60", "tpot:80"), budget_s=5.0, json=table, html=page)
        code = await asyncio.to_thread(run, options, out, Console(quiet=True))
    assert code == 0
    told = json.loads(table.read_text())
    config = parse(told["config"], "snippet")
    assert config.replicas[0].slots == told["advice"]["slots"]
    assert config.classify.fast_below_tokens == told["advice"]["fast_below_tokens"]
    assert "<svg" in page.read_text()
    assert "fast_below_tokens" in out.export_text()


def test_what_can_not_be_promised_is_said() -> None:
    assert promises(("ttft:500 tpot:80",)) == (0.5, 0.08)
    with pytest.raises(StartupError, match="needs a ttft"):
        promises(("tpot:80",))
    with pytest.raises(StartupError, match="not e2e"):
        promises(("ttft:500", "e2el:80"))


@live
async def test_nobody_there_is_one_clear_line() -> None:
    with pytest.raises(StartupError, match="is it running"):
        await tune(TuneOptions(urls=("http://127.0.0.1:9",)), lambda text: None)
