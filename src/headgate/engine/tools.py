"""Handles functions: which the model may call, and which it has called.

A model writes a call as text, in the way its chat template teaches it: `<tool_call>{"name": …, "arguments": …}
</tool_call>` in Qwen's, Hermes' and SmolLM's. Where a call is demanded, a grammar of exactly that form, with each
function's own schema inside, leaves the model nothing else to write. Either way the text is read back into calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.engine.grammar.grammar import MAX_SCHEMA_DEPTH, check_depth, json_rule
from headgate.engine.openai import ChatBody
from headgate.model.errors import InvalidRequest

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_TOOLS: Final = 128
MOST_CALLS: Final = 8
"""Maximum calls in an answer that must have at least one: a small model would never stop calling."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tools:
    """A request's functions, checked."""

    given: Sequence[Mapping[str, Any]]
    """The functions as the client gave them, for the template."""
    grammar: str | None
    """The form of a demanded call; None: the model decides whether to call a function."""
    read: bool
    """Look for calls in the output. False: how this model writes calls is unknown."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


# -- what the request wants ---------------------------------------------------------------------------------


def tools_of(body: ChatBody, template: str) -> Tools | None:
    """Returns the request's functions; None: there are none, or none may be called. Raises InvalidRequest for functions
    that make no sense or a choice that can't be honoured."""
    choice = body.tool_choice
    if choice == "none" or not body.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice demands a call, but there are no tools", param="tool_choice")
        return None
    schemas = _schemas(body.tools)
    if not re.search(r"\btools\b", template):
        raise InvalidRequest(
            "this model's chat template has no place for tools; use a model that was trained to call functions, "
            "give the engine a template that has one (--chat-template), or say tool_choice none",
            param="tools",
        )
    known = OPEN in template and "<function=" not in template
    if choice in (None, "auto"):
        return Tools(body.tools, None, known)
    wanted = _wanted(choice, schemas)
    if not known:
        raise InvalidRequest(
            "the embedded engine does not know how this model writes a call, so it can't demand one; "
            "use tool_choice auto",
            param="tool_choice",
        )
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise InvalidRequest("an answer can't be both a demanded call and in a response_format", param="tool_choice")
    several = choice == "required" and body.parallel_tool_calls is not False
    return Tools(body.tools, _grammar(wanted, f"{OPEN}[" in template, several), True)


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns every function's parameters by its name."""
    if len(tools) > MOST_TOOLS:
        raise InvalidRequest(f"at most {MOST_TOOLS} tools, got {len(tools)}", param="tools")
    schemas: dict[str, Mapping[str, Any]] = {}
    for at, tool in enumerate(tools):
        path = f"tools[{at}]"
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, Mapping):
            raise InvalidRequest(f"{path} must be a function: type and function", param=path)
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequest(f"{path}.function.name must be 1 to 64 of a-z, A-Z, 0-9, _, . and -", param=path)
        if name in schemas:
            raise InvalidRequest(f"{path}: there is another function {name!r}", param=path)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequest(f"{path}.function.parameters must be a JSON schema", param=path)
        check_depth(parameters, MAX_SCHEMA_DEPTH, "tools")
        schemas[name] = parameters or {"type": "object"}
    return schemas


def _wanted(choice: str | Mapping[str, Any], schemas: dict[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    if choice == "required":
        return schemas
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest("tool_choice must be none, auto, required or name a function", param="tool_choice")
    name = function.get("name")
    if name not in schemas:
        raise InvalidRequest(f"tool_choice: no function {name!r}; there is {', '.join(schemas)}", param="tool_choice")
    return {name: schemas[name]}


def _grammar(schemas: dict[str, Mapping[str, Any]], listed: bool, several: bool) -> str:
    """Returns the grammar of demanded calls. `listed`: the template puts all calls into one list between the marks."""
    opens, closes, between = (f"{OPEN}[", f"]{CLOSE}", ", ") if listed else (f"{OPEN}\n", f"\n{CLOSE}", "")
    between = between or f"{closes}\n{opens}"
    more = f" ({_quoted(between)} call){{0,{MOST_CALLS - 1}}}" if several else ""
    start = f"{_quoted(opens)} call{more} {_quoted(closes)}"
    calls = " | ".join(f"call_{at}" for at in range(len(schemas)))
    lines = ["%llguidance {}", f"start: {start}", f"call: {calls}"]
    for at, (name, parameters) in enumerate(schemas.items()):
        # References count from a schema's root, so their targets must be there.
        hoisted = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        inner = {key: value for key, value in parameters.items() if key not in hoisted}
        written = {"name": {"const": name}, "arguments": {"type": "object", **inner}}
        schema = {"type": "object", "properties": written, "required": [*written], "additionalProperties": False}
        lines.append(f"call_{at}: {json_rule({**schema, **hoisted}, 'tools')}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text)


# -- what the model says --------------------------------------------------------------------------------------


class CallStream:
    """Separates function calls from text in a model's output as it comes. Output that begins like a call and is none,
    is text."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls found so far."""
        self._held = ""
        self._inside = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Takes output; returns the text that may be sent, and the calls that are complete."""
        self._held += text
        said, calls = "", list[ToolCall]()
        while True:
            mark = CLOSE if self._inside else OPEN
            at = self._held.find(mark)
            if at < 0:
                break
            before, self._held = self._held[:at], self._held[at + len(mark) :]
            if self._inside:
                found = _read(before)
                calls += found
                said += "" if found else OPEN + before + CLOSE
                self.calls += len(found)
            else:
                # Line ends between calls are the template's, not the answer's.
                said += "" if self.calls and not before.strip() else before
            self._inside = not self._inside
        if not self._inside:
            sent = len(self._held) - _overlap(self._held)
            if self.calls and not self._held[:sent].strip():
                sent = 0
            said, self._held = said + self._held[:sent], self._held[sent:]
        return said, calls

    def finish(self) -> tuple[str, list[ToolCall]]:
        """Returns what was held back; no more output comes. A call that was cut off, as by a limit, is text; one that
        only lacks its end mark is a call."""
        held, self._held = self._held, ""
        if not self._inside:
            return ("" if self.calls and not held.strip() else held), []
        self._inside = False
        found = _read(held)
        self.calls += len(found)
        return ("" if found else OPEN + held), found


def _read(text: str) -> list[ToolCall]:
    """Returns one call or a list of calls; [] if the text is anything else."""
    text = text.strip()
    try:
        written = msgspec.json.decode(text if text.startswith("[") else f"[{text}]", type=list[_Written])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
    return [ToolCall(one.name, bytes(one.arguments).decode()) for one in written]


def _overlap(text: str) -> int:
    """Returns the number of characters at the end of the text that could begin a call."""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:length]):
            return length
    return 0
