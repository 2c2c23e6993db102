"""Engines that want a key, further headers or another authority's certificate: they are used like any other, no
client is shown the key, and one that is not let in is not ready, and says why."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.config import file as config_file
from headgate.model.errors import StartupError
from headgate.model.replica import Replica
from headgate.replica.credentials import Credentials
from tests.engine.process import TESTED, ask, headgate
from tests.gateway.raw_engine import TOKEN, Answer, events, raw_engine, whole
from tests.gateway.test_gateway import chat, eventually

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
KEY = "sk-very-secret-0123456789"


def written(tmp_path: Path, replicas: list[dict[str, Any]], **more: Any) -> Path:
    path = tmp_path / "headgate.yaml"
    config = {
        "replicas": replicas,
        "listen": {"port": 0},
        "health": {"probe_interval_s": 0.1, "deep_interval_s": 0.2, "ramp_s": 1},
    }
    path.write_text(json.dumps({**config, **more}))
    return path


def key_file(tmp_path: Path, key: str = KEY) -> Path:
    path = tmp_path / "key"
    path.write_text(key + "\n")
    return path


def replicas_of(url: str) -> list[dict[str, Any]]:
    """By name: they are told in the order in which they came into use."""
    found: list[dict[str, Any]] = json.loads(ask(f"{url}/admin/state")[1])["replicas"]
    return sorted(found, key=lambda one: str(one["id"]))


def all_said(url: str) -> bytes:
    """By everything that is there to be read."""
    pages = ("/admin/state", "/admin/fleet", "/admin/records", "/metrics", "/v1/models", "/admin/doctor")
    return b"".join(ask(url + page)[1] for page in pages)


def test_a_key_goes_with_everything_and_is_shown_to_nobody(tmp_path: Path) -> None:
    with raw_engine({}, key=KEY.encode()) as engine:
        replica = {
            "url": f"{engine.url}/v1/", "slots": 4, "api_key_file": str(key_file(tmp_path)),
            "headers": {"X-Team": "blue-secret"},
        }  # fmt: skip
        path, events = written(tmp_path, [replica], warm={"keep_alive_s": 0.2}), tmp_path / "events.jsonl"
        command = ("serve", "--config", str(path), "--event-log", str(events), "--record", str(tmp_path / "records"))
        with headgate(*command) as (process, url):
            eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
            status, said = ask(url + CHAT, chat("hello"))
            assert status == 200
            assert ask(url + CHAT, chat("hello", stream=True))[0] == 200
            time.sleep(1.2)
            asked = {head.split(b" ")[1] for head in engine.heads}
            assert {b"/health", b"/v1/models", b"/metrics", b"/v1/completions", b"/v1/chat/completions"} <= asked
            for head in engine.heads:
                assert head.count(b"authorization:") == 1
                assert f"authorization: Bearer {KEY}\r\n".encode() in head
                assert b"X-Team: blue-secret\r\n" in head
            assert KEY.encode() not in all_said(url) + said
            assert b"blue-secret" not in all_said(url)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        written_down = events.read_bytes() + (tmp_path / "records").read_bytes()
        assert KEY.encode() not in written_down
        assert b"blue-secret" not in written_down
        checked = subprocess.run(
            [sys.executable, "-m", "headgate", "serve", "--config", str(path), "--check"],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": TESTED},
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
        assert KEY not in checked.stdout + checked.stderr


def test_a_clients_key_goes_no_further(tmp_path: Path) -> None:
    with (
        raw_engine({}) as engine,
        headgate("serve", "--config", str(written(tmp_path, [{"url": engine.url}]))) as (_, url),
    ):
        headers = {"authorization": "Bearer client-key", "x-api-key": "client-key", "cookie": "client-key"}
        assert ask(url + CHAT, chat("hello"), headers)[0] == 200
        assert all(b"client-key" not in head for head in engine.heads)


@pytest.mark.parametrize("warmed", [True, False])
@pytest.mark.parametrize("given", ["", "sk-wrong"])
def test_one_that_does_not_let_us_in_is_not_ready_and_says_so(tmp_path: Path, warmed: bool, given: str) -> None:
    with raw_engine({}, key=KEY.encode()) as engine:
        replica: dict[str, Any] = {"url": engine.url, "slots": 4, "id": "gpu"}
        if given:
            replica["api_key_file"] = str(key_file(tmp_path, given))
        config = written(tmp_path, [replica], warm={"before_use": warmed}, timeouts={"no_replica_wait_s": 0.5})
        with starting(config) as (process, url):
            eventually(lambda: "401" in replicas_of(url)[0]["why"])
            (found,) = replicas_of(url)
            assert found["state"] == "failed"
            assert "api_key_file" in found["why"]
            eventually(lambda: b"api_key_file" in ask(f"{url}/admin/doctor")[1])
            assert b"api_key_file" in ask(f"{url}/admin/fleet")[1]
            assert ask(f"{url}/health/ready")[0] == 503
            began = time.monotonic()
            assert ask(url + CHAT, chat("hello"))[0] == 503
            assert time.monotonic() - began < 5
            if given:  # replaced while it runs: found without being told
                key_file(tmp_path)
                eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
                assert ask(url + CHAT, chat("hello"))[0] == 200
            assert process.poll() is None


@contextmanager
def starting(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A gateway that may never get ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "serve", "--config", str(config), "--port", str(port)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": TESTED},
    )
    url = f"http://127.0.0.1:{port}"

    def lives() -> bool:
        try:
            return ask(f"{url}/health/live")[0] == 200
        except OSError:
            return False

    try:
        eventually(lives)
        yield process, url
    finally:
        process.kill()
        process.wait()


def test_a_key_that_is_replaced_is_read_again_on_sighup(tmp_path: Path) -> None:
    with raw_engine({}, key=KEY.encode()) as engine:
        replica = {"url": engine.url, "slots": 4, "api_key_file": str(key_file(tmp_path))}
        quiet = {"health": {"probe_interval_s": 60, "deep_interval_s": 600}}
        with headgate("serve", "--config", str(written(tmp_path, [replica], **quiet))) as (process, url):
            assert ask(url + CHAT, chat("hello"))[0] == 200
            engine.key = b"sk-another"
            key_file(tmp_path, "sk-another")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: ask(url + CHAT, chat("hello"))[0] == 200)


def test_a_key_that_stops_being_taken_puts_the_replica_out(tmp_path: Path) -> None:
    with raw_engine({}, key=KEY.encode()) as engine, raw_engine({}) as other:
        replicas = [
            {"url": engine.url, "slots": 4, "id": "a", "api_key_file": str(key_file(tmp_path))},
            {"url": other.url, "slots": 4, "id": "b"},
        ]
        with headgate("serve", "--config", str(written(tmp_path, replicas))) as (_, url):
            eventually(lambda: [one["state"] for one in replicas_of(url)] == ["up", "up"])
            engine.key = b"sk-another"
            eventually(lambda: replicas_of(url)[0]["state"] not in ("up", "ramping"))
            assert "401" in replicas_of(url)[0]["why"]
            for _ in range(5):
                assert ask(url + CHAT, chat("hello"))[0] == 200


def test_the_first_request_that_is_not_let_in_puts_an_only_replica_out(tmp_path: Path) -> None:
    """Long before the next deep check: /health, which wants no key, is still well."""
    health = {"probe_interval_s": 0.1, "deep_interval_s": 3600}
    with raw_engine({}, key=KEY.encode()) as engine:
        replica = {"url": engine.url, "slots": 4, "id": "a", "api_key_file": str(key_file(tmp_path))}
        with headgate("serve", "--config", str(written(tmp_path, [replica], health=health))) as (_, url):
            eventually(lambda: ask(url + CHAT, chat("hello"))[0] == 200)
            engine.key = b"sk-another"
            assert ask(url + CHAT, chat("hello"))[0] >= 500
            eventually(lambda: ask(f"{url}/health/ready")[0] == 503)
            assert "401" in replicas_of(url)[0]["why"]
            engine.key = KEY.encode()
            eventually(lambda: ask(url + CHAT, chat("hello"))[0] == 200)


ECHO = b'{"error":{"message":"no: Bearer %b, blue-secret"}}' % KEY.encode()


def test_an_engine_that_quotes_its_key_does_not_give_it_away(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {
        "denied": whole(ECHO, b"401 X"), "invalid": whole(ECHO, b"400 X"), "broken": whole(ECHO, b"500 X"),
        "event": events(TOKEN, ECHO), "first": events(ECHO),
    }  # fmt: skip
    with raw_engine(answers) as engine:
        secrets = {"api_key_file": str(key_file(tmp_path)), "headers": {"x-tok": "blue-secret"}}
        path, records = written(tmp_path, [{"url": engine.url, "slots": 4, **secrets}]), tmp_path / "records"
        with headgate("serve", "--config", str(path), "--record", str(records)) as (process, url):
            eventually(lambda: ask(url + CHAT, chat("hello"))[0] == 200)
            said = b""
            for name in answers:
                said += ask(url + CHAT, chat(f"say={name}", stream=name in ("event", "first")))[1]
            said += all_said(url)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        said += records.read_bytes()
        assert said.count(b"***") > 4
        assert KEY.encode() not in said
        assert b"blue-secret" not in said


def test_on_the_command_line(tmp_path: Path) -> None:
    with raw_engine({}, key=KEY.encode()) as engine:
        flags = ("--replica", f"{engine.url}/v1", "--replica-key-file", str(key_file(tmp_path)), "--port", "0")
        with headgate("serve", *flags) as (_, url):
            assert ask(url + CHAT, chat("hello"))[0] == 200


# -- TLS -----------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=engine",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


def test_a_private_authority_is_trusted_for_its_replica_alone(tmp_path: Path) -> None:
    cert, context = certificate(tmp_path)
    with raw_engine({}, key=KEY.encode(), tls=context) as engine:
        replica = {"url": f"{engine.url}/v1", "slots": 4, "ca": str(cert), "api_key_file": str(key_file(tmp_path))}
        with headgate("serve", "--config", str(written(tmp_path, [replica]))) as (_, url):
            assert ask(url + CHAT, chat("hello"))[0] == 200
        del replica["ca"]
        with starting(written(tmp_path, [replica], timeouts={"no_replica_wait_s": 0.2})) as (_, url):
            before = len(engine.heads)
            assert ask(url + CHAT, chat("hello"))[0] == 503
            assert len(engine.heads) == before, "nothing is said to one that can't prove who it is"


# -- the config ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://h:8000/v1", "http://h:8000/v1/", "http://h:8000//", "http://h:8000/", "http://h:8000"]
)
def test_the_address_that_clients_use_is_a_replicas_too(url: str) -> None:
    (replica,) = config_file.parse(json.dumps({"replicas": [{"url": url}]}), "file").replicas
    assert (replica.url, replica.id) == ("http://h:8000", "h:8000")
    assert config_file.replica_at(url).url == "http://h:8000"


@pytest.mark.parametrize(
    "url", ["http://h:8000/v2", "http://h/v1/chat", "http://h/v1?x", "http://u@h/v1", "http://h/xv1"]
)
def test_no_other_path_is(url: str) -> None:
    with pytest.raises(StartupError, match="/v1"):
        config_file.replica_at(url)


@pytest.mark.parametrize(
    ("replica", "problem"),
    [
        ({"headers": {"Host": "x"}}, "host is written with every request"),
        ({"headers": {"x-a": "1", "X-A": "2"}}, "x-a is given twice"),
        ({"headers": {"Authorization": "x"}, "api_key_file": "/k"}, "give one of the two"),
        (
            {"headers": {"x-a": "secret\r\nx-b: 2"}},
            "expected text of 1 to 4096 printable ASCII characters, got something",
        ),
        ({"headers": {"x a": "1"}}, "expected a name"),
        ({"ca": "/etc/ca.pem"}, "expected an https address"),
    ],
)
def test_what_can_not_be_meant_is_said(replica: dict[str, Any], problem: str) -> None:
    with pytest.raises(StartupError) as raised:
        config_file.parse(json.dumps({"replicas": [{"url": "http://h", **replica}]}), "file")
    assert problem in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "  \n", "two words", "line\nline", "k" * 5000, "käy"])
def test_a_file_that_holds_no_key_is_named_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(StartupError, match="api_key_file") as raised:
        Credentials(Replica(id="r", url="http://h", api_key_file=path))
    assert not content.strip() or content.strip() not in str(raised.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(StartupError, match="can't read its api_key_file"):
        Credentials(Replica(id="r", url="http://h", api_key_file=gone))
    with pytest.raises(StartupError, match="can't use its ca"):
        Credentials(Replica(id="r", url="https://h", ca=gone))
    gone.write_text("no certificate")
    with pytest.raises(StartupError, match="can't use its ca"):
        Credentials(Replica(id="r", url="https://h", ca=gone))


def test_whoever_may_add_replicas_can_not_have_files_read(tmp_path: Path) -> None:
    with (
        raw_engine({}) as engine,
        headgate("serve", "--config", str(written(tmp_path, [{"url": engine.url}]))) as (_, url),
    ):
        body = {"url": "http://127.0.0.1:9", "id": "x", "api_key_file": str(key_file(tmp_path))}
        status, said = ask(f"{url}/admin/replicas", body)
        assert status == 400
        assert b"config file alone" in said


def test_what_is_written_down_of_a_replica_has_no_secrets() -> None:
    plain = Replica(id="r", url="http://h")
    assert plain.public is plain
    secret = Replica(id="r", url="http://h", headers={"x": "secret"}, api_key_file=Path("/k"))
    assert secret.public == plain
    assert "secret" not in repr(secret)
