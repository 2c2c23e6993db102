"""Shows people a start: what listens where, what takes time, which replicas answer, and a first request to try.

Where no person reads standard error (JSON log lines, --quiet) all of it goes to the log instead.
"""

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from headgate.compiled import version
from headgate.model.clock import Clock

log = logging.getLogger(__name__)

KEY = "OPENAI_API_KEY"
"""Environment variable with a tenant's key, as OpenAI's own clients expect it."""
MOST_SHOWN = 8
"""Replicas that the banner names."""


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """What the banner says of one replica."""

    id: str
    url: str
    answers: bool
    about: str
    """What it is, or why it does not answer."""


class Progress:
    def __init__(
        self, clock: Clock, console: Console | None = None, *, banner: bool = True, shown: bool = True
    ) -> None:
        self._clock = clock
        self._banner = banner
        """False: phases only; the process that started this one prints the title and the ready line."""
        self._shown = shown
        """False: nothing is printed, and everything is logged."""
        self._console = console or Console(stderr=True, highlight=False)

    def title(self) -> None:
        if not self._shown:
            log.info("%s", version())
        elif self._banner:
            name, rest = version().split(" ", 1)
            self._console.print(f"[bold]{name}[/] {escape(rest)}")

    def say(self, text: str) -> None:
        if not self._shown:
            log.info("%s", text)
        elif self._banner:
            self._console.print(f"  {escape(text)}", soft_wrap=True)

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Shows a spinner while the block runs, then a line with its duration."""
        began = self._clock()
        if not self._shown:
            yield
            log.info("%s took %.1f s%s", name, self._clock() - began, f": {detail}" if detail else "")
            return
        about = escape(f"{name:<9} {detail}".rstrip())
        with self._console.status(f"{about} …"):
            yield
        self._console.print(f"  {about}  [dim]{self._clock() - began:.1f} s[/]")

    def listening(self, where: str, surfaces: Sequence[tuple[str, str]]) -> None:
        """`surfaces`: what else is to be found at that address, each with its path."""
        said = ", ".join(f"{name} {path}" for name, path in surfaces)
        self.say(f"{'listens':<9} {where}  ({said})" if self._shown else f"listens on {where} ({said})")

    def none_answer(self, replicas: Sequence[ReplicaLine], wait_s: float) -> None:
        """No replica has answered for a while. `wait_s`: how long a request waits for one."""
        none = "the replica does not answer" if len(replicas) == 1 else f"none of {len(replicas)} replicas answers"
        said = f"{none} yet; until one does, a request waits {wait_s:g} s and gets 503"
        if not self._shown:
            log.warning("%s: %s", said, "; ".join(f"{one.id}: {one.about}" for one in replicas[:MOST_SHOWN]))
        elif self._banner:
            self._console.print(f"[yellow]{said}[/]", soft_wrap=True)
            self._tell(replicas)

    def _tell(self, replicas: Sequence[ReplicaLine]) -> None:
        for one in replicas[:MOST_SHOWN]:
            mark = "[green]✓[/]" if one.answers else "[yellow]–[/]"
            where = one.url if one.url.endswith(one.id) else f"{one.id} at {one.url}"
            self._console.print(f"  {'replica':<9} {mark} {escape(where)}: {escape(one.about)}", soft_wrap=True)
        if len(replicas) > MOST_SHOWN:
            rest = replicas[MOST_SHOWN:]
            answer = sum(one.answers for one in rest)
            self._console.print(f"  {'':<9}   and {len(rest)} more, of which {answer} answer")

    def ready(
        self, where: str, model: str, took_s: float, *, key: bool = False, replicas: Sequence[ReplicaLine] = ()
    ) -> None:
        """`key`: requests without a tenant's key are refused. `replicas`: those that are told of; empty: none is."""
        answer = sum(one.answers for one in replicas)
        of = f", {answer} of {len(replicas)} replicas" if len(replicas) > 1 else ""
        if not self._shown:
            log.info("%s %s after %.1f s%s", "Ready on" if self._banner else "engine ready on", where, took_s, of)
            for one in replicas[:MOST_SHOWN]:
                if not one.answers:
                    log.warning("replica %s at %s does not answer yet: %s", one.id, one.url, one.about)
            return
        if not self._banner:
            return
        self._tell(replicas)
        held = f", with a tenant's key in {KEY}" if key else ""
        with self._console:  # one write: no log line gets in between
            self._console.print(
                f"[green]Ready[/] on [bold]{escape(where)}[/] after {took_s:.1f} s{of}. Try{held}:", soft_wrap=True
            )
            self._console.print(curl(where, model, key=key), markup=False, soft_wrap=True)


def curl(where: str, model: str, *, key: bool = False) -> str:
    """The curl command for a first request, quoted so that a shell takes any model name."""
    if where.startswith("unix:"):
        how, base = f"--unix-socket {shlex.quote(where.removeprefix('unix:'))} ", "http://localhost"
    else:
        # -k: the name in the certificate is not known here, and the request does not leave this machine.
        how, base = "-k " if where.startswith("https:") else "", where
    for anywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        base = base.replace(anywhere, here)
    asked = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 40}
    body = shlex.quote(json.dumps(asked, ensure_ascii=False, separators=(",", ":")))
    bearer = f' \\\n    -H "authorization: Bearer ${KEY}"' if key else ""
    return f"  curl {how}{base}/v1/chat/completions -H 'content-type: application/json'{bearer} \\\n    -d {body}"
