"""Reads which functions the model may call, and which it has to.

A model writes a call as text, in the way its chat template teaches it (`calls.py` has the forms); where the template
does not speak of functions, `taught.py` does. Where a call is demanded, a grammar of exactly that form, with each
function's own schema inside, leaves the model nothing else to write.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate.engine.grammar.grammar import MAX_SCHEMA_DEPTH, check_depth, json_rule
from headgate.engine.openai import ChatBody
from headgate.engine.speech.calls import CLOSE, OPEN, Style
from headgate.model.errors import InvalidRequest

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
    style: Style | None
    """How calls are written. None: how this model does it is unknown, and no calls are looked for."""
    taught: bool = False
    """The template has no place for functions: the messages say what they are."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(str(tool["function"]["name"]) for tool in self.given)


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
    is_taught = not speaks_of_tools(template)
    style = "marked" if is_taught else style_of(template)
    if choice in (None, "auto"):
        return Tools(body.tools, None, style, is_taught)
    wanted = _wanted(choice, schemas)
    if style is None:
        raise InvalidRequest(
            "the embedded engine does not know how this model writes a call, so it can't demand one; "
            "use tool_choice auto",
            param="tool_choice",
        )
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise InvalidRequest("an answer can't be both a demanded call and in a response_format", param="tool_choice")
    several = choice == "required" and body.parallel_tool_calls is not False
    return Tools(body.tools, _grammar(wanted, style, f"{OPEN}[" in template, several), style, is_taught)


def speaks_of_tools(template: str) -> bool:
    """Whether a chat template has a place for functions."""
    return re.search(r"\btools\b", template) is not None


def style_of(template: str) -> Style | None:
    """How a model with this template writes a call; None: unknown, such as in tags of XML for each argument."""
    if OPEN in template:
        return None if "<function=" in template else "marked"
    llama = "ipython" in template or "<|python_tag|>" in template
    return "bare" if llama and re.search(r'\\?"parameters\\?"', template) else None


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


def _grammar(schemas: dict[str, Mapping[str, Any]], style: Style, listed: bool, several: bool) -> str:
    """Returns the grammar of demanded calls. `listed`: the template puts all calls into one list between the marks."""
    field = "arguments"
    if style == "bare":
        opens, closes, between, field = "", "", "", "parameters"
        several = False  # Llama 3's template refuses a turn with two
    else:
        opens, closes, between = (f"{OPEN}[", f"]{CLOSE}", ", ") if listed else (f"{OPEN}\n", f"\n{CLOSE}", "")
    between = between or f"{closes}\n{opens}"
    more = f" ({_quoted(between)} call){{0,{MOST_CALLS - 1}}}" if several else ""
    start = f"{_quoted(opens)} call{more} {_quoted(closes)}" if opens else "call"
    calls = " | ".join(f"call_{at}" for at in range(len(schemas)))
    lines = ["%llguidance {}", f"start: {start}", f"call: {calls}"]
    for at, (name, parameters) in enumerate(schemas.items()):
        # References count from a schema's root, so their targets must be there.
        hoisted = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        inner = {key: value for key, value in parameters.items() if key not in hoisted}
        written = {"name": {"const": name}, field: {"type": "object", **inner}}
        schema = {"type": "object", "properties": written, "required": [*written], "additionalProperties": False}
        lines.append(f"call_{at}: {json_rule({**schema, **hoisted}, 'tools')}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text)
