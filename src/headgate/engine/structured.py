"""Reads the demanded form of the output, for which OpenAI, vLLM, SGLang and llama.cpp each have their own fields."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headgate.engine.fields import unsupported
from headgate.engine.grammar.grammar import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    check_depth,
    json_grammar,
    response_grammar,
)
from headgate.engine.openai import Body
from headgate.model.errors import InvalidRequest

MOST_CHOICES_OF_TEXT: Final = 4096
_BACKENDS: Final = ("", "auto", "guidance", "llguidance")
"""Names that mean llguidance, or leave the choice to the engine."""
_SETTINGS: Final = frozenset({"disable_fallback", "disable_any_whitespace", "backend", "backend_was_auto"})
"""vLLM's settings beside the form itself: they choose how it is enforced, which is always llguidance here."""


class Rules(NamedTuple):
    grammar: str
    param: str
    """The field that asked for this form."""


def rules_of(body: Body) -> Rules | None:
    """Returns the one form that the body asks for; None: any text. Raises InvalidRequest for a form that makes no
    sense."""
    found: list[Rules] = []
    for param, kind, value in _asked(body):
        grammar = _MAKERS[kind](value, param) if value else None
        if grammar is not None:
            found.append(Rules(grammar, param))
    if len(found) > 1:
        names = " and ".join(rules.param for rules in found)
        raise InvalidRequest(f"the output can have one form only, not {names}", param=found[1].param)
    return found[0] if found else None


def _asked(body: Body) -> list[tuple[str, str, Any]]:
    """Lists the fields that may ask for a form: name, kind of form, and value."""
    asked = [
        ("response_format", "response_format", body.response_format),
        ("guided_json", "json", body.guided_json),
        ("guided_json_object", "json_object", body.guided_json_object),
        ("guided_regex", "regex", body.guided_regex),
        ("guided_choice", "choice", body.guided_choice),
        ("guided_grammar", "grammar", body.guided_grammar),
        ("json_schema", "json", body.json_schema),
        ("regex", "regex", body.regex),
    ]
    if (body.guided_decoding_backend or "") not in _BACKENDS:
        raise unsupported("guided_decoding_backend", "it is llguidance here: leave it out, or say guidance")
    if body.guided_whitespace_pattern:
        raise unsupported("guided_whitespace_pattern")
    for name, value in (body.structured_outputs or {}).items():
        param = f"structured_outputs.{name}"
        if name in _MAKERS and name != "response_format":
            asked.append((param, name, value))
        elif name not in _SETTINGS and value:
            raise unsupported(param)
    return asked


def _json(value: Any, param: str) -> str:
    if isinstance(value, str):
        if len(value) > MAX_SCHEMA_BYTES:
            raise _wrong(param, f"the schema has {len(value)} characters, at most {MAX_SCHEMA_BYTES} are taken")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _wrong(param, "this is no JSON schema") from None
    if not isinstance(value, Mapping):
        raise _wrong(param, "a JSON schema must be an object, or text of one")
    check_depth(value, MAX_SCHEMA_DEPTH, param)
    return json_grammar(value, param)


def _json_object(value: Any, param: str) -> str:
    return json_grammar({"type": "object"}, param)


def _regex(value: Any, param: str) -> str:
    """Returns a grammar for the regular expression, which matches the whole output: ^ and $ around it mean nothing."""
    text = _text(value, param)
    text = text[1:] if text.startswith("^") else text
    if text.endswith("$") and (len(text) - len(text[:-1].rstrip("\\"))) % 2:
        text = text[:-1]
    # A backslash and the character after it belong together; a bare slash or line end would end the expression.
    escaped = re.sub(r"\\(.)|[/\n\r]", lambda found: _ESCAPED.get(found[0], found[0]), text, flags=re.DOTALL)
    if not escaped or (escaped.endswith("\\") and (len(escaped) - len(escaped.rstrip("\\"))) % 2):
        raise _wrong(param, "this is no regular expression")
    return f"%llguidance {{}}\nstart: /{escaped}/"


_ESCAPED: Final = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}


def _choice(value: Any, param: str) -> str:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise _wrong(param, "the choices must be a list of texts, none of them empty")
    if len(value) > MOST_CHOICES_OF_TEXT:
        raise _wrong(param, f"at most {MOST_CHOICES_OF_TEXT} choices, got {len(value)}")
    _text("".join(value), param)
    return "%llguidance {}\nstart: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value)


def _grammar(value: Any, param: str) -> str:
    text = _text(value, param)
    if "%llguidance" in text:
        raise _wrong(param, "%llguidance is the engine's own; leave it out")
    if "::=" in text:
        raise _wrong(param, "write it in Lark (start: …); the embedded engine does not read GBNF or EBNF (root ::= …)")
    return "%llguidance {}\n" + text


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _wrong(param, "it must be text")
    if len(value) > MAX_SCHEMA_BYTES:
        raise _wrong(param, f"it has {len(value)} characters, at most {MAX_SCHEMA_BYTES} are taken")
    return value


def _response_format(value: Any, param: str) -> str | None:
    return response_grammar(value)


_MAKERS: Final[Mapping[str, Callable[[Any, str], str | None]]] = {
    "response_format": _response_format,
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}


def _wrong(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {reason}", param=param)
