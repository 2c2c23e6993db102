"""Installs clients, and tries them against a gateway: in front of a scripted engine, and of the bundled model.

    python -m tests.clients install [NAME …]   each in an environment of its own below .bench/clients
    python -m tests.clients [NAME …]           those that are installed, and a line for each check

Ends with status 1 if a check failed, or a client that was named is not installed.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.catalog import CLIENTS, ROOT, Client
from tests.clients.running import run, scripted, small


def install(client: Client) -> bool:
    if client.is_installed:
        return True
    if client.home is not None:
        print(f"{client.name}: not installed; make vllm", flush=True)
        return False
    client.folder.mkdir(parents=True, exist_ok=True)
    print(f"{client.name}: installing {' '.join(client.packages)} …", flush=True)
    if client.node:
        commands = [["npm", "install", "--silent", "--no-save", "--prefix", str(client.folder), *client.packages]]
    else:
        python = str(client.folder / "bin" / "python")
        commands = [
            [sys.executable, "-m", "venv", str(client.folder)],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *client.packages],
        ]
        if not client.packages:
            commands.pop()
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{client.name}: not installed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return False
    (client.folder / ".installed").touch()
    return True


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as where:
        yield Path(where)


def main(words: list[str]) -> int:
    installs = words[:1] == ["install"]
    names = words[1:] if installs else words
    if unknown := [name for name in names if name not in CLIENTS]:
        print(f"no client {unknown[0]!r}; there are {', '.join(CLIENTS)}")
        return 2
    clients = [CLIENTS[name] for name in names or CLIENTS]
    if installs:
        return 0 if sum(not install(client) for client in clients) == 0 else 1
    failed = [client.name for client in clients if names and not client.is_installed]
    for client in clients:
        if not client.is_installed:
            print(f"{client.name}: not installed; make clients ARGS={client.name}", flush=True)
    present = [client for client in clients if client.is_installed]
    for engine in (scripted, small):
        with folder() as where, engine(where) as served:
            print(f"-- {engine.__name__} engine", flush=True)
            for client in present:
                done = run(client, served)
                print("".join(f"{client.name}: {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
                if done.returncode:
                    failed.append(client.name)
                    print(done.stderr, flush=True)
    print(f"failed: {', '.join(sorted(set(failed)))}" if failed else "all of them passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
