"""The settings that we ship let WebSockets through, and everything that is said on them."""

import time

import pytest

from tests.export.test_proxies import behind, engine, url
from tests.gateway.test_gateway import chat, eventually, seen
from tests.gateway.test_websocket import answer, error, opened, say

pytestmark = pytest.mark.timeout(60)
__all__ = ["behind", "engine", "url"]  # fixtures


def test_answers_cancels_and_closures_pass_through_proxies(url: str, engine: str) -> None:
    with opened(url) as client:
        say(client, chat("n=3", stream=True))
        assert len(answer(client)) == 4
        for wish in ("cancel", "close"):
            say(client, chat("itl=20 n=1000", stream=True))
            client.recv()
            left_at = time.monotonic()
            if wish == "cancel":
                client.send('{"type":"cancel"}')
                assert error(client)["status"] == 499
            else:
                client.close()
            eventually(lambda: seen(engine)["running"] == 0)
            assert seen(engine)["closed_at"][-1] - left_at < 0.2
