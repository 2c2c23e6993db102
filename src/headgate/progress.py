"""Shows a few readable lines on standard error while something takes time."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from headgate.compiled import version
from headgate.model.clock import Clock

KEY = "OPENAI_API_KEY"
"""Environment variable with a tenant's key, as OpenAI's own clients expect it."""


class Progress:
    def __init__(self, clock: Clock, console: Console | None = None, *, banner: bool = True) -> None:
        self._clock = clock
        self._banner = banner
        """False: phases only; the process that started this one prints the title and the ready line."""
        self._console = console or Console(stderr=True, highlight=False)

    def title(self) -> None:
        if not self._banner:
            return
        name, rest = version().split(" ", 1)
        self._console.print(f"[bold]{name}[/] {escape(rest)}")

    def say(self, text: str) -> None:
        if not self._banner:
            return
        self._console.print(f"  {escape(text)}")

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Shows a spinner while the block runs, then a line with its duration."""
        began = self._clock()
        about = escape(f"{name:<9} {detail}".rstrip())
        with self._console.status(f"{about} …"):
            yield
        self._console.print(f"  {about}  [dim]{self._clock() - began:.1f} s[/]")

    def ready(self, where: str, model: str, took_s: float, *, key: bool = False) -> None:
        """`key`: requests without a tenant's key are refused."""
        if not self._banner:
            return
        held = f", with a tenant's key in {KEY}" if key else ""
        self._console.print(
            f"[green]Ready[/] on [bold]{escape(where)}[/] after {took_s:.1f} s. Try{held}:", soft_wrap=True
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
