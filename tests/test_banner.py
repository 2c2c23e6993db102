"""The banner's curl is for copying: it is run here, as it is printed, by a shell."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headgate.progress import Progress
from tests.engine.process import headgate
from tests.keys import hash_key

KEY = "a-key-of-somebody"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0", "--model-name", "it's") as (_, url):
        yield url


def tried(process: "subprocess.Popen[str]", **environ: str) -> tuple[list[str], str]:
    """The lines of the banner after `Ready`, and what its curl says."""
    assert process.stderr is not None
    lines = [process.stderr.readline()]
    while lines[-1].rstrip().endswith("\\"):
        lines.append(process.stderr.readline())
    done = subprocess.run(
        ["bash", "-c", "".join(lines)], capture_output=True, text=True, timeout=30, env={**os.environ, **environ}
    )
    return lines, done.stdout


def answers(said: str) -> bool:
    return bool(json.loads(said)["choices"][0]["message"]["content"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0"])
def test_the_curl_of_the_banner_is_answered(engine: str, host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no ::1")
    with headgate("serve", "--replica", engine, "--port", "0", "--host", host, "--insecure") as (process, where):
        lines, said = tried(process)
        assert answers(said), said
        assert "authorization" not in "".join(lines)
        assert where.startswith(f"http://[{host}]:" if ":" in host else f"http://{host}:")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("anonymous", [False, True])
def test_with_keys_it_says_where_the_key_goes(engine: str, anonymous: bool, tmp_path: Path) -> None:
    config = tmp_path / "headgate.yaml"
    allowed = "anonymous: {allowed: true}\n" if anonymous else ""
    config.write_text(f"{allowed}tenants: {{a: {{key_sha256: [{hash_key(KEY)}]}}}}\nreplicas: [{{url: {engine}}}]\n")
    with headgate("serve", "--config", str(config), "--port", "0") as (process, _):
        lines, said = tried(process, OPENAI_API_KEY=KEY)
        assert answers(said), said
        assert ("$OPENAI_API_KEY" in "".join(lines)) is not anonymous


@pytest.mark.timeout(60)
def test_over_tls_too(engine: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=other.example"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    config = tmp_path / "headgate.yaml"
    config.write_text(f"listen: {{tls: {{cert: {cert}, key: {key}}}}}\nreplicas: [{{url: {engine}}}]\n")
    with headgate("serve", "--config", str(config), "--port", "0") as (process, where):
        _, said = tried(process)
        assert where.startswith("https://")
        assert answers(said), said


def banner(where: str, *, key: bool = False) -> str:
    out = StringIO()
    Progress(lambda: 0.0, Console(file=out, width=40)).ready(where, 'a "b" c', 1.0, key=key)
    return out.getvalue()


def test_a_narrow_terminal_does_not_break_it() -> None:
    said = banner("unix:/tmp/a b.sock", key=True)
    assert "--unix-socket '/tmp/a b.sock' http://localhost/v1" in said
    assert '"model":"a \\"b\\" c"' in said
    assert "a tenant's key in OPENAI_API_KEY" in " ".join(said.split())
