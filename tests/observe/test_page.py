"""The page's files and its feed, asked over plain HTTP."""

import asyncio
import json
import re
from importlib.resources import files
from typing import Any

import pytest

from headgate.model.clock import monotonic
from headgate.surface import live as feed
from headgate.surface.live import Live
from headgate.surface.page import Page
from headgate.wire.router import Router
from tests.wire.serving import Client, live, serving, until

FOLDER = files("headgate.surface").joinpath("page")
WATCH = b"GET /admin/live HTTP/1.1\r\nhost: test\r\n\r\n"


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: test", *headers, "", ""]).encode()


# -- files --------------------------------------------------------------------------------------------------


@live
async def test_the_page_and_all_it_refers_to_come_from_here_and_allow_nothing_else() -> None:
    async with serving(Router(Page().routes())) as served:
        client = await served.connect()
        index = await client.ask(get("/"))
        assert (index.status, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
        wanted = re.findall(r'(?:src|href)="(page/[^"]+)"', index.body.decode())
        assert "page/page.css" in wanted
        seen: set[str] = set()
        while wanted:
            path = wanted.pop()
            answer = await client.ask(get(f"/{path}"))
            kind = {"css": "text/css", "js": "text/javascript", "svg": "image/svg"}[path.rpartition(".")[2]]
            assert answer.status == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            seen.add(path)
            imported = re.findall(r'from "\./([^"]+)"', answer.body.decode())
            wanted += [f"page/{name}" for name in imported if f"page/{name}" not in seen]
        assert {path.removeprefix("page/") for path in seen} == {file.name for file in FOLDER.iterdir()} - {
            "index.html"
        }


@live
async def test_a_file_is_sent_again_only_when_it_has_changed() -> None:
    async with serving(Router(Page().routes())) as served:
        client = await served.connect()
        first = await client.ask(get("/page/page.js"))
        assert first.headers["cache-control"] == "no-cache"
        again = await client.ask(get("/page/page.js", f'if-none-match: "old", W/{first.headers["etag"]}'))
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
        other = await client.ask(get("/page/page.css", f"if-none-match: {first.headers['etag']}"))
        assert other.status == 200


@live
async def test_only_the_pages_own_files_can_be_had() -> None:
    async with serving(Router(Page().routes())) as served:
        client = await served.connect()
        for path in ("/page/", "/page/nothing.js", "/page/../page.py", "/page/..%2fpage.py", "/page//etc/passwd"):
            assert (await client.ask(get(path))).status == 404


def test_nothing_is_inline_and_nothing_is_fetched_from_elsewhere() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text()
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), file.name
        if file.name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", text)


# -- the feed ------------------------------------------------------------------------------------------------


class Producer:
    """A gateway with two lanes that counts how often it is asked."""

    def __init__(self, size: int = 0) -> None:
        self.snapshots = 0
        self.histories = 0
        self.fails = False
        self._padding = "x" * size

    def snapshot(self, now: float) -> dict[str, Any]:
        self.snapshots += 1
        if self.fails:
            raise KeyError("figures")
        return {"number": self.snapshots, "padding": self._padding}

    def history(self, now: float) -> dict[str, Any]:
        self.histories += 1
        return {"bands": [1.0], "lanes": {"fast": [{"at": 10.0 * n} for n in range(60)], "slow": []}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "EVERY_S", 0.01)


def made(producer: Producer) -> Live:
    return Live(producer.snapshot, producer.history, monotonic)


def routed(watched: Live) -> Router:
    return Router({("GET", "/admin/live"): watched.watch})


async def next_event(client: Client) -> dict[str, Any]:
    """Chunks hold an event each."""
    data = await client.chunk()
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    event: dict[str, Any] = json.loads(data[6:])
    return event


@live
async def test_a_viewer_gets_ten_minutes_first_then_a_snapshot_a_second_and_what_is_new() -> None:
    async with serving(routed(made(Producer()))) as served:
        client = await served.connect()
        client.send(WATCH)
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        first = await next_event(client)
        assert len(first["history"]["lanes"]["fast"]) == 60
        events = [await next_event(client) for _ in range(12)]
        numbers = [event["snapshot"]["number"] for event in events if "snapshot" in event]
        assert numbers == list(range(1, len(numbers) + 1))
        news = next(event["history"] for event in events if "history" in event)
        assert [part["at"] for part in news["lanes"]["fast"]] == [530.0, 540.0, 550.0, 560.0, 570.0, 580.0, 590.0]
        assert news["bands"] == [1.0]


@live
async def test_everybody_is_sent_the_same_snapshot_and_nothing_is_made_while_nobody_watches() -> None:
    producer = Producer()
    watched = made(producer)
    async with serving(routed(watched)) as served:
        one, two = await served.connect(), await served.connect()
        for client in (one, two):
            client.send(WATCH)
            await client.head()
        theirs: list[set[int]] = []
        for client in (one, two):
            events = [await next_event(client) for _ in range(20)]
            theirs.append({event["snapshot"]["number"] for event in events if "snapshot" in event})
        assert len(theirs[0] & theirs[1]) > 10
        assert watched.viewers == 2
        one.leave()
        two.leave()
        await until(lambda: watched.viewers == 0)
        made_so_far = producer.snapshots, producer.histories
        await asyncio.sleep(5 * feed.EVERY_S)
        assert (producer.snapshots, producer.histories) == made_so_far


@live
async def test_no_more_viewers_than_the_gateway_can_afford(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "VIEWERS", 2)
    watched = made(Producer())
    async with serving(routed(watched)) as served:
        first = await served.connect()
        for client in (first, await served.connect()):
            client.send(WATCH)
            assert (await client.head())[0] == 200
        refused = await (await served.connect()).ask(WATCH)
        assert refused.status == 503
        assert b"2 pages are watching already" in refused.body
        assert int(refused.headers["retry-after"]) > 0
        first.leave()
        await until(lambda: watched.viewers == 1)
        later = await served.connect()
        later.send(WATCH)
        assert (await later.head())[0] == 200


@live
async def test_a_viewer_that_does_not_read_costs_a_bounded_buffer_and_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "PATIENCE_S", 0.3)
    producer = Producer(size=400_000)
    watched = made(producer)
    unsent: list[int] = []
    router = routed(watched)

    async with serving(router) as served:
        idle, eager = await served.connect(), await served.connect()
        idle.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for client in (idle, eager):
            client.send(WATCH)
        await eager.head()
        while watched.viewers < 2:
            await next_event(eager)
        while watched.viewers == 2:
            await next_event(eager)
            unsent += [exchange.unsent for exchange in watched._viewers]
        # At most what it was passed over for, and the one event written just before.
        assert max(unsent) < feed.UNSENT_BYTES + 2 * 401_000
        assert watched.viewers == 1
        while "snapshot" not in await next_event(eager):
            pass


@live
async def test_at_shutdown_every_stream_ends_and_no_other_begins() -> None:
    watched = made(Producer())
    async with serving(routed(watched)) as served:
        client = await served.connect()
        client.send(WATCH)
        await client.head()
        watched.close()
        while await client.chunk():
            pass
        assert watched.viewers == 0
        assert (await (await served.connect()).ask(WATCH)).status == 503


@live
async def test_figures_that_cannot_be_made_end_the_streams_with_a_reason_and_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Producer()
    async with serving(routed(made(producer))) as served:
        client = await served.connect()
        client.send(WATCH)
        await client.head()
        await next_event(client)
        producer.fails = True
        events = []
        while chunk := await client.chunk():
            events.append(json.loads(chunk[6:]))
        assert "could not be made" in events[-1]["error"]["message"]
        assert "could not be made" in caplog.text
        producer.fails = False
        again = await served.connect()
        again.send(WATCH)
        assert (await again.head())[0] == 200
        assert [len(await next_event(again)) for _ in range(4)] == [1, 1, 1, 1]


@live
async def test_head_does_not_take_a_seat() -> None:
    watched = made(Producer())
    async with serving(routed(watched)) as served:
        client = await served.connect()
        client.send(WATCH.replace(b"GET", b"HEAD"))
        status, headers = await client.head()
        assert (status, headers["content-type"], watched.viewers) == (200, "text/event-stream", 0)
