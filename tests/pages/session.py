"""Types a page's commands as a reader would, in an empty folder, and holds what is said against what the page shows.

The ports of a page are exchanged for free ones. A figure may differ from the page's, a word may not; `…` on a page
stands for anything.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.pages.blocks import Block, Command

PORT = re.compile(r"(?<=:)(\d{4,5})\b|(?<=--port )(\d{4,5})\b")
ID = re.compile(r"\b[0-9a-f]{10}-[0-9a-f]+\b|\bdoctor-[0-9a-f]+\b")
SERVERS = ("serve", "engine")
READY_S = 90.0
COMMAND_S = 120.0
_FIGURE = r"[\d∞–]+(?:[.,  ]\d+)*"
_UNIT = r"(?:ms|µs|s|min)"


def as_pattern(shown: str) -> re.Pattern[str]:
    """What a page shows, as an expression that fits any figures in it."""
    parts = []
    for piece in shown.split("…"):
        words = []
        for word in piece.split():
            if ID.search(word):
                words.append(r"\S+")
            elif re.fullmatch(_UNIT, word) and words:
                words.append(_UNIT)
            else:
                escaped = re.escape(word).replace(r"\-", "-")
                words.append(re.sub(r"\d+(?:\\?[.,]\d+)*", lambda _: _FIGURE, escaped))
        parts.append(r"\s+".join(words))
    return re.compile(r"\s*.*?\s*".join(parts), re.DOTALL)


class Session:
    """A folder, the processes that were started in it, and free ports for those that the page names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[str, int] = {}
        self._servers: list[subprocess.Popen[bytes]] = []
        self._id = ""
        """A request's id, as the last `headgate slow` showed it."""
        bin_ = folder / ".bin"
        bin_.mkdir()
        shim = bin_ / "headgate"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate "$@"\n')
        shim.chmod(0o755)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")} | {
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HEADGATE_URL": f"http://127.0.0.1:{self.port('8000')}",
            "COLUMNS": "160",
            "NO_COLOR": "1",
        }
        if "HEADGATE_CACHE" in os.environ:
            self.env["HEADGATE_CACHE"] = os.environ["HEADGATE_CACHE"]

    def port(self, named: str) -> int:
        if named not in self._ports:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                self._ports[named] = taken.getsockname()[1]
        return self._ports[named]

    def _here(self, text: str) -> str:
        return PORT.sub(lambda found: str(self.port(found[1] or found[2])), text)

    def write(self, block: Block) -> None:
        (self._folder / block.title).write_text(self._here(block.text))

    def python(self, text: str) -> str:
        return self._run([sys.executable, "-c", self._here(text)])

    def run(self, command: Command) -> None:
        """Runs a command, and raises AssertionError where it says something other than the page."""
        (first, *more), *_ = command.words
        if first == "export":
            for name, value in (word.split("=", 1) for word in more):
                if name != "PATH":
                    self.env[name] = value
            return
        text = self._here(command.bare)
        if first.endswith("headgate") and more[0] in SERVERS and not {"--check", "--help"} & set(more):
            said = self._serve(text)
        else:
            if self._id:
                text = re.sub(r"(?<=headgate why )\S+", self._id, text)
            fails = command.shown.startswith("headgate: ") or "doctor" in text
            said = self._run(["bash", "-o", "pipefail", "-c", text], (0, 1, 2) if fails else (0,))
        if "headgate slow" in text and (found := ID.search(said)):
            self._id = found[0]
        if not as_pattern(command.shown).search(said):
            raise AssertionError(f"{command.page}: $ {command.text}\nThe page shows\n{command.shown}\nIt said\n{said}")

    def _run(self, words: list[str], may_end: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            words, cwd=self._folder, env=self.env, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode in may_end, f"{words[-1]} ended with {done.returncode}: {done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def _serve(self, text: str) -> str:
        """Starts a server and returns what it says until it is ready."""
        if "--port" not in text:
            text += f" --port {self.port('8000' if ' serve' in text else '8001')}"
        log = self._folder / f".server-{len(self._servers)}"
        with log.open("wb") as out:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self._folder, env=self.env,
                stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._servers.append(server)
        until = time.monotonic() + READY_S
        while not re.search(r"Ready on \S+[^\n]*\n", said := log.read_text()):
            assert server.poll() is None, f"{text} ended: {said}"
            assert time.monotonic() < until, f"{text} did not get ready: {said}"
            time.sleep(0.05)
        return log.read_text()

    def close(self) -> None:
        """Ends the servers, the last one first: a gateway before its engines."""
        for server in reversed(self._servers):
            server.send_signal(signal.SIGTERM)
        for server in self._servers:
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
