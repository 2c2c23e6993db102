"""Runs `headgate top`: asks the gateway once a second, draws what it says, and heeds the keys."""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from rich.console import Console, RenderableType
from rich.text import Text

from headgate.cli.client import AdminClient, waterfall
from headgate.cli.terminal.frame import TopView, frame, help_page, paged
from headgate.cli.terminal.keyboard import Keyboard, keyboard
from headgate.explain.explanation import seconds
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import StartupError

EVERY_S: Final = 1.0
WITHIN_S: Final = 5.0
LEAST = (40, 10)
"""Smallest terminal that a frame is drawn on: columns and lines."""


def top(
    url: str, key: str | None, *, once: bool = False, console: Console | None = None, clock: Clock = monotonic
) -> None:
    """Shows the gateway until it is told to stop. `once`, or without a terminal: prints one frame."""
    console = console or Console(highlight=False)
    gateway = AdminClient(url, key, timeout_s=WITHIN_S)
    first = state_of(gateway)
    if once or not (console.is_terminal and sys.stdin.isatty()):
        console.print(frame(first, console.width, None, TopView()))
        return
    with keyboard() as keys, console.screen(hide_cursor=True) as screen:
        feed = _Feed(gateway, first, keys.wake, clock)
        feed.start()
        try:
            _Top(gateway, feed, console, clock).run(keys, screen.update)
        finally:
            feed.stop()


def state_of(gateway: AdminClient) -> dict[str, Any]:
    state = gateway.ask("/admin/state")
    if not {"verdict", "lanes", "replicas", "slowest", "totals"} <= state.keys():
        raise StartupError(f"{gateway.url} answers, but not as this version of Headgate does: is it older?")
    return state


class _Feed:
    """Asks for the state on a thread of its own, so that no key waits for a gateway that is slow to answer."""

    def __init__(self, gateway: AdminClient, first: dict[str, Any], wake: Callable[[], None], clock: Clock) -> None:
        self.state = first
        self.at = clock()
        self.trouble = ""
        self._gateway = gateway
        self._wake = wake
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The thread ends by itself, after its question at the latest; a slow gateway holds up no leaving."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                self.state = state_of(self._gateway)
            except StartupError as error:
                self.trouble = str(error)
            else:
                self.at, self.trouble = self._clock(), ""
            if not self._stopped.is_set():
                self._wake()


class _Top:
    """What is on the screen, and what each key makes of it."""

    def __init__(self, gateway: AdminClient, feed: _Feed, console: Console, clock: Clock) -> None:
        self._gateway = gateway
        self._feed = feed
        self._console = console
        self._clock = clock
        self._view = TopView()
        self._page: RenderableType | None = None
        """What is shown instead of the overview: an explanation, or help. None: the overview."""
        self._line = 0
        """First line of the page that is shown."""

    def run(self, keys: Keyboard, draw: Callable[[RenderableType], None]) -> None:
        try:
            while True:
                draw(self.shown())
                pressed = keys.keys(EVERY_S)
                if pressed is None or not all(self.press(key) for key in pressed):
                    return
        except KeyboardInterrupt:
            return

    def shown(self) -> RenderableType:
        width, height = self._console.size
        if width < LEAST[0] or height < LEAST[1]:
            return Text(f"at least {LEAST[0]} columns and {LEAST[1]} lines, please", overflow="fold")
        if self._page is not None:
            page, self._line = paged(self._console, self._page, width, height - 1, self._line)
            return page
        feed = self._feed
        age_s = self._clock() - feed.at
        trouble = f"no answer for {seconds(age_s)}: {feed.trouble}" if feed.trouble else ""
        return frame(feed.state, width, height, replace(self._view, trouble=trouble))

    def press(self, key: str) -> bool:
        """Heeds a key. Returns False to leave."""
        if key in ("q", "ctrl-c", "ctrl-d"):
            return False
        self._view = replace(self._view, said="")
        if self._page is not None:
            self._turn(key)
        elif key in ("up", "k", "down", "j"):
            self._choose(1 if key in ("down", "j") else -1)
        elif key in ("enter", "w"):
            self._explain()
        elif key == "?":
            self._page, self._line = help_page(self._console.width), 0
        elif key == "i":
            self._record()
        return True

    def _turn(self, key: str) -> None:
        lines = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self._height, "page down": self._height}
        if key in lines:
            self._line += lines[key]
        elif key in ("escape", "back", "enter", "?", "w"):
            self._page = None

    @property
    def _height(self) -> int:
        return self._console.height - 1

    def _choose(self, by: int) -> None:
        ids = [one["id"] for one in self._feed.state["slowest"]]
        if not ids:
            return
        chosen = self._view.chosen
        at = ids.index(chosen) + by if chosen in ids else 0 if by > 0 else len(ids) - 1
        self._view = replace(self._view, chosen=ids[max(0, min(at, len(ids) - 1))])

    def _explain(self) -> None:
        slowest = self._feed.state["slowest"]
        chosen = self._view.chosen or (slowest[0]["id"] if slowest else "")
        if not chosen:
            self._view = replace(self._view, said="no request has been slow in the last five minutes")
            return
        try:
            answer = self._gateway.ask(f"/admin/requests/{quote(chosen, safe='')}")
        except StartupError as error:
            self._view = replace(self._view, said=str(error))
        else:
            self._view = replace(self._view, chosen=chosen)
            self._page, self._line = waterfall(answer, max(8, min(32, self._console.width // 4))), 0

    def _record(self) -> None:
        try:
            answer = self._gateway.send("POST", "/admin/incidents", {"reason": "asked for in headgate top"})
        except StartupError as error:
            self._view = replace(self._view, said=str(error))
        else:
            self._view = replace(self._view, said=f"recorded: headgate incident show {answer['id']}")
