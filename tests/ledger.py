"""After every test, whatever its requests held at a gateway is back: `GET /admin/ledger` is all zeros.

Gateways that outlive a test are looked at by conftest.py's fixture after each of them; those that a test starts, before
they are stopped. Clients have closed by then, or do so in the time that is allowed.
"""

import asyncio
import hashlib
import json
import ssl
import time
import urllib.error
import urllib.request
from subprocess import Popen

from headgate.surface.ledger import Holdings

WITHIN_S = 5.0
"""A busy machine takes a while to notice that a client has closed; a leak is there for ever."""
running: dict[str, Popen[str]] = {}
"""Gateways in processes of their own, by address."""
ADMIN_KEY = "sk-admin"
ADMIN_KEYS = [hashlib.sha256(ADMIN_KEY.encode()).hexdigest()]
"""For the config of a gateway whose tenants have keys: its /admin asks for one too."""
ANY_CERTIFICATE = ssl.create_default_context()
ANY_CERTIFICATE.check_hostname = False
ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE


def check_all(within_s: float = WITHIN_S) -> None:
    for url, process in running.items():
        if process.poll() is None:
            check(url, within_s)


def check(url: str, within_s: float = WITHIN_S) -> None:
    """Raises AssertionError if something is still held there at the end of the time. A gateway that can't be asked, or
    wants a key for it, is not looked at."""
    ends = time.monotonic() + within_s
    while held := left_over(url):
        assert time.monotonic() < ends, f"{url} still holds {held}, and no request is under way"
        time.sleep(0.01)


def left_over(url: str) -> dict[str, int]:
    request = urllib.request.Request(f"{url}/admin/ledger", headers={"x-api-key": ADMIN_KEY})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S, context=ANY_CERTIFICATE) as answer:
            held: dict[str, int] = json.loads(answer.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: count for name, count in held.items() if count}


def not_zero(ledger: Holdings) -> dict[str, int]:
    return {name: count for name, count in ledger.held().items() if count}


async def settled(ledger: Holdings, within_s: float = WITHIN_S) -> None:
    """The same of a gateway in this process."""
    ends = time.monotonic() + within_s
    while held := not_zero(ledger):
        assert time.monotonic() < ends, f"it still holds {held}, and no request is under way"
        await asyncio.sleep(0.002)
