"""A built wheel, or the source archive, as a user gets it: installed into an empty environment, with what is locked and
nothing else.

    python tests/smoke_wheel.py build/wheel/headgate-….whl build/wheel/headgate-….tar.gz …

It says its version, takes the example config, serves the bundled model, is changed by an admin, and answers one chat.
No test of the suite: it installs everything anew (some 150 MB). `make test-wheel` builds the wheels and calls it.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ADMIN, USER = "smoke-admin-key", "smoke-user-key"
CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADGATE", "VIRTUAL_ENV"))
}


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def installed(folder: Path, wheel: Path) -> Path:
    """The `headgate` command of a new environment with nothing but the locked dependencies and this wheel or archive.
    What builds the archive is locked too."""
    venv.create(folder, with_pip=True)
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
    ]
    locked = ["--require-hashes", "-r", str(ROOT / "requirements.lock")]
    for what in (locked, ["--no-build-isolation", str(wheel)]):
        subprocess.run([*pip, *what], check=True, env=CLEAN, cwd=folder)
    return folder / "bin" / "headgate"


def said(command: Path, *arguments: str) -> str:
    done = subprocess.run([command, *arguments], capture_output=True, text=True, env=CLEAN, cwd=command.parent)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()


@contextmanager
def serving(command: Path, config: Path, version: str) -> Iterator[str]:
    """Where it listens. Ended as an operator ends it, which it must take well."""
    argv = [str(command), "serve", "--config", str(config), "--port", "0"]
    process = subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, env=CLEAN | {"NO_COLOR": "1", "COLUMNS": "200"}, cwd=config.parent
    )
    assert process.stderr is not None
    try:
        printed = []
        for line in process.stderr:
            print(f"  | {line.rstrip()}")
            printed.append(line)
            if ready := re.search(r"Ready on (\S+)", line):
                break
        else:
            raise AssertionError("it did not get ready")
        assert printed[0].strip() == version
        yield ready[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(url: str, key: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def smoke(wheel: Path, folder: Path) -> None:
    command = installed(folder / "environment", wheel)
    version = said(command, "--version")
    print(version)
    assert ("(compiled)" in version) == ("linux" in wheel.name)

    checked = said(command, "serve", "--config", str(ROOT / "headgate.example.yaml"), "--check")
    assert said(command, "export", "example").strip() == (ROOT / "headgate.example.yaml").read_text().strip()
    print(checked)
    assert checked.startswith("ok: ")

    config = folder / "headgate.yaml"
    config.write_text(
        f"admin_keys: [{sha256(ADMIN)}]\n"
        f"tenants: {{acme: {{key_sha256: [{sha256(USER)}]}}}}\n"
        "lanes: {fast: {slow_client: spool}}\n"
        "embedded: {slots: 2, context: 512}\n"
    )
    with serving(command, config, version) as url:
        changes: list[tuple[str, dict[str, Any]]] = [
            ("tenants", {"acme": {"key_sha256": [sha256(USER)], "requests_per_min": 100}}),
            ("lanes", {"slow": {"slow_client": "spool", "wait_bound_s": 3}}),
        ]
        for what, change in changes:
            status, answer = ask(f"{url}/admin/{what}", ADMIN, change)
            print(f"POST /admin/{what}: {status} {answer}")
            assert status == 200
        assert ask(f"{url}/admin/tenants", USER, {})[0] == 401
        assert ask(f"{url}/admin/tenants", ADMIN, {"acme": {"requests_per_min": "many"}})[0] == 400

        chat = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12}
        status, answer = ask(f"{url}/v1/chat/completions", USER, chat)
        assert status == 200, answer
        print(f"chat: {answer['choices'][0]['message']['content']!r}")
        assert answer["choices"][0]["message"]["content"].strip()
        assert answer["usage"]["completion_tokens"] <= 12
        (one,) = ask(f"{url}/admin/slow", ADMIN)[1]["slow"]
        print(f"why: {one['headline']}")
        assert (one["tenant"], one["outcome"]) == ("acme", "completed")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="headgate-wheel-") as name:
            smoke(Path(given).resolve(), Path(name))
        print(f"{Path(given).name} works.")
