"""What is refused before anybody reads it has asked all the same, where we were too full: it is counted."""

import json
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.gateway.account import NO_LANE, Account
from headgate.model.outcome import Outcome
from tests.engine.process import ask, headgate
from tests.gateway.raw_engine import TOKEN, events, raw_engine
from tests.gateway.test_gateway import chat, eventually

pytestmark = pytest.mark.timeout(60)


def test_only_what_would_have_asked_counts_and_only_where_we_were_full() -> None:
    account = Account()
    for status, path in (
        (503, "/v1/chat/completions"),
        (503, ""),
        (503, "/admin/slo"),
        (408, ""),
        (431, ""),
        (400, ""),
    ):
        account.refuse(status, path)
    assert account.unseen == {503: 3, 408: 1, 431: 1, 400: 1}
    assert account.ended == {(NO_LANE, Outcome.QUEUE_FULL): 2}
    assert (account.open_now, len(account.records)) == (0, 0)


def test_connections_that_found_no_place_are_refused_requests(tmp_path: Path) -> None:
    body = json.dumps(chat("say=endless", stream=True)).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request += b"content-length: %d\r\n\r\n%b" % (len(body), body)
    with raw_engine({"endless": events(TOKEN, end=b"")}) as engine:
        path = tmp_path / "headgate.yaml"
        config = {"replicas": [{"url": engine.url}], "listen": {"port": 0}, "limits": {"connections": 3}}
        path.write_text(json.dumps(config))
        with headgate("serve", "--config", str(path)) as (_, url):
            eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
            where = urlsplit(url)
            assert where.hostname is not None
            assert where.port is not None
            streams = [socket.create_connection((where.hostname, where.port), timeout=10) for _ in range(3)]
            for stream in streams:
                stream.sendall(request)
                assert stream.recv(100).startswith(b"HTTP/1.1 200")
            for _ in range(9):
                with socket.create_connection((where.hostname, where.port), timeout=10) as extra:
                    extra.sendall(request)
                    assert extra.recv(100).startswith(b"HTTP/1.1 503")
            for stream in streams:
                stream.close()
            eventually(lambda: ask(f"{url}/metrics")[0] == 200)
            metrics = ask(f"{url}/metrics")[1].decode()
            told = dict(re.findall(r'headgate_wire_refusals_total\{status="(\d+)"\} (\d+)', metrics))
            assert int(told["503"]) >= 9
            assert told["431"] == "0"
            refused = re.search(r'headgate_answers_total\{lane="other",result="refused"\} (\d+)', metrics)
            assert refused is not None
            assert int(refused[1]) >= 9
            eventually(lambda: "other" in json.loads(ask(f"{url}/admin/slo")[1])["lanes"])
            slo = json.loads(ask(f"{url}/admin/slo")[1])
            assert slo["lanes"]["other"]["availability"]["5m"]["refused"] >= 9
            assert ("refused_share", "other") in [(one["name"], one["lane"]) for one in slo["alerts"]]
