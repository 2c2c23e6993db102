"""Reads what a model says: its reasoning, the text of its answer, and the functions it calls, as it comes.

Two ways of writing a call are known. `marked`: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen's and
Hermes' templates teach it. `bare`: an answer that is nothing but `{"name": …, "parameters": {…}}`, as Llama 3's do.
The arguments of a call are passed on as they come, once its name is that of a function the request has; everything
else that begins like a call is held back until it is one, or is text.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
PYTHON: Final = "<|python_tag|>"
"""What Llama 3 may write before a call; nearly always a control token, which has no text."""
Style = Literal["marked", "bare"]
Thinks = Literal["no", "may", "begun"]
"""Whether the output may begin with reasoning. `begun`: the prompt has ended with its mark."""
_TYPED: Final = re.compile(r'(\s*\{)\s*"type"\s*:\s*"function"\s*,')
"""What Llama 3 may write before the name."""
_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""The beginning of a call up to its arguments."""
_NAMED: Final = re.compile(
    r'\{\s*(?:"(?:n(?:a(?:m(?:e(?:"\s*(?::\s*(?:"(?P<name>[^"]*)(?P<end>")?)?)?)?)?)?)?)?)?'  # cut off anywhere
)
_BEFORE: Final = re.compile(r"\s*;?\s*")
"""What may be between two bare calls."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a model's output is to be read."""

    style: Style | None = None
    """How calls are written; None: the output has none."""
    names: frozenset[str] = frozenset()
    """The functions of the request."""
    thinks: Thinks = "no"


class CallPiece(NamedTuple):
    """A part of a call."""

    at: int
    """Number of the call in the answer."""
    name: str
    """Empty: more of the arguments of this call."""
    arguments: str
    """JSON, as the model wrote it."""


@dataclass(slots=True)
class Said:
    """What there is to tell."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class Speech:
    """One sequence's output."""

    def __init__(self, manner: Manner) -> None:
        self._style = manner.style
        self._names = manner.names
        self._thinks = manner.thinks
        self.calls = 0
        """Calls begun so far."""
        self.broken = ""
        """The text of the last call, if it broke off after its name had been told; empty: it did not."""
        self._held = ""
        self._inside = False
        """Behind the mark of a call."""
        self._said_text = False
        self._has_thought = self._behind_thought = False
        self._open: _Arguments | None = None
        """The call whose arguments are being told."""

    def push(self, text: str) -> Said:
        """Takes output."""
        said = Said()
        self._held += text
        if self._thinks != "no":
            said.reasoning = self._think()
        if self._thinks == "no":
            self._answer(said)
        return said

    def finish(self) -> Said:
        """Returns what was held back; no more output comes. A call that was cut off, as by a limit, is text unless its
        name has been told already (`broken`); one that only lacks its end mark is a call."""
        said, held = Said(), self._held
        self._held = ""
        if self._thinks == "begun":
            said.reasoning = held
        elif self._thinks == "may":
            said.text = held
        elif self._open is not None:
            call = self._open
            if not call.is_whole:
                self.broken = call.text
        elif self._inside or self._begins_bare(held):
            calls = _read(held)
            said.calls = self._told(calls)
            said.text = "" if calls else (OPEN if self._inside else "") + held
        else:
            said.text = held
        if self.calls and not said.text.strip():
            said.text = ""
        self._inside = False
        return said

    # -- reasoning ------------------------------------------------------------------------------------------------

    def _think(self) -> str:
        """Takes reasoning from what is held."""
        if self._thinks == "may":
            begun = self._held.lstrip()
            if begun.startswith(THINK):
                self._held, self._thinks = begun[len(THINK) :], "begun"
            elif not THINK.startswith(begun):
                self._thinks = "no"
                return ""
            else:
                return ""
        before, mark, behind = self._held.partition(THOUGHT)
        # Line ends around the marks belong to the template. Those that are held back may be such.
        end = len(before) if mark else len(before) - _overlap(before, THOUGHT)
        sent = len(before[:end].rstrip("\n"))
        thought = before[:sent]
        if not self._has_thought:
            thought = thought.lstrip("\n")
            self._has_thought = bool(thought)
        self._held = behind if mark else before[sent:]
        if mark:
            self._thinks, self._behind_thought = "no", True
        return thought

    # -- text and calls -------------------------------------------------------------------------------------------

    def _answer(self, said: Said) -> None:
        if self._behind_thought:
            self._held = self._held.lstrip("\n")
            self._behind_thought = not self._held
        if self._style is None:
            said.text, self._held = self._held, ""
        elif self._style == "marked":
            while self._marked(said):
                pass
        else:
            while self._bare(said):
                pass
        self._said_text = self._said_text or bool(said.text.strip())

    def _marked(self, said: Said) -> bool:
        """Takes a part of what is held. Returns whether there may be another one."""
        if self._open is not None:
            return self._pass_on(said, CLOSE)
        if self._inside:
            if self._begin(said):
                return True
            at = self._held.find(CLOSE)
            if at < 0:
                return False
            written, self._held = self._held[:at], self._held[at + len(CLOSE) :]
            calls = _read(written)
            said.calls += self._told(calls)
            said.text += "" if calls else OPEN + written + CLOSE
            self._inside = False
            return True
        before, mark, behind = self._held.partition(OPEN)
        if mark:
            # Line ends between calls are the template's, not the answer's.
            said.text += "" if self.calls and not before.strip() else before
            self._held, self._inside = behind, True
            return True
        sent = len(before) - _overlap(before, OPEN)
        if self.calls and not before[:sent].strip():
            sent = 0
        said.text, self._held = said.text + before[:sent], before[sent:]
        return False

    def _bare(self, said: Said) -> bool:
        if self._open is not None:
            return self._pass_on(said, "")
        if not self._begins_bare(self._held):
            said.text, self._held = said.text + self._held, ""
            return False
        return self._begin(said)

    def _begins_bare(self, text: str) -> bool:
        """Whether all of the output so far may be a call."""
        if self._style != "bare" or self._said_text:
            return False
        begun = text.lstrip()
        if self.calls:
            begun = _BEFORE.sub("", begun, count=1)
        begun = begun.removeprefix(PYTHON).lstrip()
        if not begun or PYTHON.startswith(begun):
            return True
        begun = _TYPED.sub(r"\1", begun, count=1)
        if '{"type":"function",'.startswith("".join(begun[:64].split())):
            return True
        found = _NAMED.match(begun)
        if found is None:
            return False
        name, is_whole = found["name"], found["end"] is not None
        if name is None:
            return found.end() == len(begun)
        return name in self._names if is_whole else any(one.startswith(name) for one in self._names)

    def _begin(self, said: Said) -> bool:
        """Begins to tell a call, if its name and the beginning of its arguments have come."""
        held = self._held
        if self._style == "bare":
            held = _TYPED.sub(r"\1", _BEFORE.sub("", held, count=1).removeprefix(PYTHON), count=1)
        found = _HEAD.match(held)
        if found is None:
            return False
        try:
            name = msgspec.json.decode(found[1], type=str)
        except (msgspec.DecodeError, UnicodeError):
            return False
        if name not in self._names:
            return False
        self._open = _Arguments(held[: found.end()])
        said.calls += (CallPiece(self.calls, name, ""),)
        self.calls += 1
        self._held = held[found.end() :]
        return True

    def _pass_on(self, said: Said, close: str) -> bool:
        """Tells arguments. Returns whether the call is over."""
        call = self._open
        assert call is not None
        told, self._held = call.take(self._held)
        if told:
            said.calls += (CallPiece(self.calls - 1, "", told),)
        if not call.is_whole:
            return False
        if close:
            at = self._held.find(close)
            if at < 0:
                return False  # what is left of the call, which says nothing more
            self._held = self._held[at + len(close) :]
        else:
            left = self._held.lstrip()
            if not left.startswith("}"):
                return False
            self._held = left[1:]
        self._open, self._inside = None, False
        return True

    def _told(self, calls: list[tuple[str, str]]) -> tuple[CallPiece, ...]:
        pieces = tuple(CallPiece(at, *call) for at, call in enumerate(calls, self.calls))
        self.calls += len(calls)
        return pieces


class _Arguments:
    """The arguments of a call: an object, followed to its end."""

    __slots__ = ("_depth", "_escaped", "_quoted", "_taken", "head", "is_whole")

    def __init__(self, head: str) -> None:
        self.head = head
        self.is_whole = False
        self._taken: list[str] = []
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def text(self) -> str:
        return self.head + "".join(self._taken)

    def take(self, text: str) -> tuple[str, str]:
        """The part of the text that belongs to the object, and the rest."""
        if self.is_whole:
            return "", text
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    self.is_whole = True
                    self._taken.append(text[: at + 1])
                    return text[: at + 1], text[at + 1 :]
        self._taken.append(text)
        return text, ""


def _read(text: str) -> list[tuple[str, str]]:
    """Name and arguments of one call or of a list of calls; [] if the text is anything else."""
    text = text.strip().removeprefix(PYTHON).strip()
    try:
        written = msgspec.json.decode(text if text.startswith("[") else f"[{text}]", type=list[_Written])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
    return [(one.name, (bytes(one.arguments) or bytes(one.parameters) or b"{}").decode()) for one in written]


def _overlap(text: str, mark: str) -> int:
    """Number of characters at the end of the text that could begin the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
