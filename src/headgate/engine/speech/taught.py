"""Teaches a model to call functions whose chat template has no place for them.

The functions go into the system message, calls and results of earlier turns into the text of theirs, all in the words
of Hermes' and Qwen's templates, which many models have seen. How well a model calls functions that way depends on the
model; a demanded call is right in form whatever the model, since a grammar leaves it no choice.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.engine.speech.calls import CLOSE, OPEN
from headgate.model.errors import InvalidRequest

TASK: Final = """You may call one or more functions to answer. They are given as JSON schemas within <tools></tools>:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as a JSON object within <tool_call></tool_call>, and nothing else:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>"""


def taught(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """The messages for a template that knows neither functions nor calls nor results. Raises InvalidRequest."""
    made: list[Mapping[str, Any]] = []
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            _result(made, message)
        elif message.get("tool_calls"):
            if not isinstance(message["tool_calls"], list):
                path = f"messages[{at}].tool_calls"
                raise InvalidRequest(f"{path} must be a list", param=path)
            made.append(_with_calls(message))
        else:
            made.append(message)
    if tools:
        _teach(made, tools)
    return made


def _teach(made: list[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    task = TASK.format(tools=listed)
    first = made[0] if made else {}
    if first.get("role") in ("system", "developer"):
        made[0] = {**first, "content": _joined(first.get("content"), task)}
    else:
        made.insert(0, {"role": "system", "content": task})


def _with_calls(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """An assistant's message with its calls as text."""
    texts = []
    for call in message["tool_calls"]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = function.get("arguments")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            name = json.dumps(function.get("name"), ensure_ascii=False)
            texts.append(f'{OPEN}\n{{"name": {name}, "arguments": {arguments or "{}"}}}\n{CLOSE}')
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": _joined(message.get("content"), "\n".join(texts))}


def _result(made: list[Mapping[str, Any]], message: Mapping[str, Any]) -> None:
    """Adds a function's result as the user's. Results of one turn are one message: some templates want turns to
    alternate."""
    content = _joined("<tool_response>", _joined(message.get("content"), "</tool_response>"))
    if made and made[-1].get("role") == "user" and "tool_call_id" in made[-1]:
        content = _joined(made[-1]["content"], content)
        made.pop()
    made.append({"role": "user", "tool_call_id": message.get("tool_call_id"), "content": content})


def _joined(content: Any, more: Any) -> Any:
    """Contents of messages, text or parts, one behind the other."""
    if not content:
        return more
    if not more:
        return content
    if isinstance(content, str) and isinstance(more, str):
        return f"{content}\n{more}"
    return [*_parts(content), *_parts(more)]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
