"""What does a person see while something takes time? A few readable lines on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from headgate.compiled import version
from headgate.model.clock import Clock


class Progress:
    def __init__(self, clock: Clock, console: Console | None = None, *, banner: bool = True) -> None:
        self._clock = clock
        self._banner = banner
        """False: phases only; somebody else says hello and when it is ready."""
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
        """A spinner while it lasts, then a line with how long it took."""
        began = self._clock()
        about = escape(f"{name:<9} {detail}".rstrip())
        with self._console.status(f"{about} …"):
            yield
        self._console.print(f"  {about}  [dim]{self._clock() - began:.1f} s[/]")

    def ready(self, where: str, model: str, took_s: float) -> None:
        if not self._banner:
            return
        self._console.print(f"[green]Ready[/] on [bold]{escape(where)}[/] after {took_s:.1f} s. Try:")
        socket = f"--unix-socket {where.removeprefix('unix:')} " if where.startswith("unix:") else ""
        base = "http://localhost" if socket else where
        body = f'{{"model":"{model}","messages":[{{"role":"user","content":"Say hello."}}],"max_tokens":40}}'
        self._console.print(
            f"  curl {socket}{base}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'",
            markup=False,
            soft_wrap=True,
        )
