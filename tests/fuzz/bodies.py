"""Request bodies: an ordinary one, with a few fields that are not."""

import random
from dataclasses import dataclass
from typing import Any

from tests.fuzz.odd import dumped, mutated, text, value

MODELS = ("good", "odd", "real", "default")
FIELDS = (
    "model", "messages", "prompt", "input", "stream", "stream_options", "n", "best_of", "max_tokens",
    "max_completion_tokens", "max_output_tokens", "min_tokens", "n_predict", "max_new_tokens", "temperature", "top_p",
    "top_k", "min_p", "stop", "stop_token_ids", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "user", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "chat_template",
    "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "echo", "suffix", "ignore_eos",
    "priority", "service_tier", "metadata", "store", "modalities", "audio", "prediction", "reasoning",
    "reasoning_effort", "bad_words", "allowed_token_ids", "kv_transfer_params", "lora_path", "vllm_xargs", "rid",
    "cache_salt", "truncate_prompt_tokens", "prompt_cache_key", "safety_identifier", "verbosity", "encoding_format",
    "dimensions", "instructions", "previous_response_id", "conversation", "include", "background", "truncation",
    "text", "event_id", "type",
)  # fmt: skip
PARTS: tuple[dict[str, Any], ...] = (
    {"type": "text", "text": "hello"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg" * 40, "format": "wav"}},
    {"type": "input_text", "text": "hello"},
    {"type": "file", "file": {"file_data": "JVBERi0" * 40}},
)


@dataclass(frozen=True, slots=True)
class Ask:
    path: str
    body: bytes


def ask(rng: random.Random) -> Ask:
    path = rng.choice(
        ("/v1/chat/completions",) * 4 + ("/v1/completions",) * 2 + ("/v1/responses", "/v1/embeddings", "/tokenize")
    )
    body = ordinary(rng, path)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        change(rng, body)
    said = dumped(body)
    if rng.random() < 0.15:
        said = mutated(rng, said)
    if rng.random() < 0.02:
        said = large(rng)
    return Ask(path, said)


def ordinary(rng: random.Random, path: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": rng.choice(MODELS), "max_tokens": rng.choice((1, 3))}
    if rng.random() < 0.5:
        body["stream"] = rng.random() < 0.7
    match path:
        case "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": text(rng, 60)}]
        case "/v1/completions":
            body["prompt"] = text(rng, 60)
        case "/tokenize":
            return {"model": body["model"], "prompt": text(rng, 60)}
        case _:
            body["input"] = text(rng, 60)
            body["max_output_tokens"] = body.pop("max_tokens")
    return body


def change(rng: random.Random, body: dict[str, Any]) -> None:
    match rng.randrange(8):
        case 0 if body:
            del body[rng.choice(list(body))]
        case 1:
            body["messages"] = [message(rng) for _ in range(rng.choice((0, 1, 3, 200)))]
        case 2:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema(rng)}}
        case 3:
            body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema(rng)}}]
        case 4:
            body["prompt"] = rng.choice(([1, 2, 3], [[1], [2]], ["a", "b"], [], [[]], ["a"] * 500, [10**9]))
        case _:
            body[rng.choice(FIELDS)] = value(rng)


def message(rng: random.Random) -> Any:
    said: dict[str, Any] = {"role": rng.choice(("system", "user", "assistant", "tool", "developer", "", "x"))}
    said["content"] = text(rng, 30)
    if rng.random() < 0.3:
        said["content"] = rng.choices(PARTS, k=rng.randrange(3)) if rng.random() < 0.5 else value(rng, 2)
    if rng.random() < 0.2:
        said["tool_calls"] = value(rng, 2)
    return said if rng.random() < 0.9 else value(rng, 1)


def schema(rng: random.Random, depth: int = 4) -> Any:
    """A JSON schema: sensible, recursive, enormous or wrong."""
    if not depth or rng.random() < 0.3:
        return rng.choice(
            (
                {"type": rng.choice(("string", "integer", "number", "boolean", "null", "array", "object", "x"))},
                {
                    "type": "string",
                    "pattern": rng.choice(("^a+$", "(a|b)*c", "^(a{1,9}){1,9}$", "[", "(?=x)", "^" + "a?" * 40)),
                },
                {"type": "string", "minLength": rng.choice((0, 5, 10**6)), "maxLength": rng.choice((0, 10, 10**9))},
                {"enum": list(map(str, range(rng.choice((0, 3, 300)))))},
                {"$ref": rng.choice(("#", "#/$defs/a", "#/nowhere", "http://127.0.0.1:1/x", 3))},
                {"const": value(rng, 1)},
                value(rng, 1),
            )
        )
    inner = [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return rng.choice(
        (
            {
                "type": "object",
                "properties": dict(zip("abc", inner, strict=False)),
                "required": ["a"],
            },
            {
                "type": "array",
                "items": inner[0],
                "minItems": rng.choice((0, 3, 10**5)),
                "maxItems": rng.choice((2, 10**7)),
            },
            {"anyOf": inner},
            {"allOf": inner},
            {"$defs": {"a": inner[0]}, "$ref": "#/$defs/a"},
            {"type": "object", "additionalProperties": inner[0], "patternProperties": {"^x": inner[-1]}},
        )
    )


def large(rng: random.Random) -> bytes:
    """A megabyte and more: deep, many, or long."""
    size = rng.choice((1 << 20, 4 << 20, 9 << 20))
    one = rng.choice((b"[", b'{"a":', b"1,", b'"",', b'{"role":"user","content":"a"},', b"\\u0000", b" ", b"a", b"9"))
    start = rng.choice(
        (b"", b"[", b'{"model":"good","messages":[', b'{"model":"good","prompt":"', b'{"model":"good","stop":[')
    )
    return start + one * (size // len(one))
