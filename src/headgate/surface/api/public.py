"""Describes the API that clients use, route by route."""

from typing import Any

from headgate.metrics.exposition import CONTENT_TYPE
from headgate.surface.api.operation import Operation, Operations, Parameter, ref

COMPLETIONS, MODELS, HEALTH, DOCS = "Completions", "Models", "Health", "Documentation"
HTML = "text/html; charset=utf-8"
REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 502, 503, 504)


def _header(name: str, about: str) -> Parameter:
    return Parameter(name=name, about=about, where="header")


def _promise(what: str, alias: str, field: str) -> str:
    return (
        f"For trusted keys: milliseconds {what} that this request promises, instead of its lane's; the config's "
        f"`promises` bounds it. Also {alias}, or {field} in the body."
    )


ASKING = (
    _header("x-request-id", "Becomes the request's id, in answers, records and traces; one is made otherwise."),
    _header(
        "x-headgate-task",
        "chat (the default of a chat), extract, classify, reason, code or other: whose cap on the answer counts.",
    ),
    _header("x-headgate-session", "Requests of one session prefer one replica."),
    _header("x-headgate-lane", "For trusted keys: fast, slow, long, batch, or one of your own."),
    _header("x-headgate-priority", "For trusted keys: 0 goes first."),
    _header(
        "x-headgate-when-late",
        "refuse or relegate: what happens if the request would wait too long in its lane. relegate: it waits in the "
        "next lane, and the answer's header x-headgate-relegated says so. By default as the lane's when_late says, and "
        "refuse for a request that promises a first token itself.",
    ),
    _header("x-headgate-ttft-ms", _promise("to its first token", "x-llm-d-slo-ttft-ms", "ttft_target_ms")),
    _header("x-headgate-tpot-ms", _promise("for each further token", "x-llm-d-slo-tpot-ms", "tpot_target_ms")),
    _header("x-headgate-version", "For trusted keys: which version of a model."),
    _header(
        "x-headgate-timings",
        "Any value: the answer's headers say its lane and its wait, x-headgate-lane and -queue-ms.",
    ),
    _header("traceparent", "W3C trace context; passed on to the replica."),
)


def _socket(name: str, summary: str) -> Operation:
    return Operation(
        tag=COMPLETIONS,
        name=name,
        summary=summary,
        about="Each message is a body, as for the POST; each answer comes as the data of its events, a message each, "
        'and ends with `[DONE]` or an error. `{"type": "cancel"}` ends the answer under way. An `event_id` in one '
        "is said again in its error.",
        parameters=(Parameter(name="upgrade", about="websocket", where="header"),),
        status=101,
        errors=(400, 401, 403, 426, 503),
    )


def _open(tag: str, name: str, summary: str, **more: Any) -> Operation:
    """A route that needs no key."""
    return Operation(tag=tag, name=name, summary=summary, who="anybody", **more)


EVENTS = "OpenAI's chunks, one event per token as the engine gives them, and `[DONE]`."

PUBLIC: Operations = {
    ("POST", "/v1/chat/completions"): Operation(
        tag=COMPLETIONS,
        name="chat",
        summary="Answer a chat",
        about="Admitted by lane and tenant, queued for as long as its lane allows, sent to the replica that suits it "
        "best; another is tried if that one fails before the first token, and goes on after it where the engine can.",
        parameters=ASKING,
        body=ref("ChatRequest"),
        example={"model": "default", "messages": [{"role": "user", "content": "Hello!"}], "stream": True},
        answer=ref("ChatCompletion"),
        streams=EVENTS,
        errors=REFUSALS,
    ),
    ("POST", "/v1/completions"): Operation(
        tag=COMPLETIONS,
        name="complete",
        summary="Go on with a text",
        parameters=ASKING,
        body=ref("CompletionRequest"),
        example={"model": "default", "prompt": "Once upon a time", "max_tokens": 32},
        answer=ref("Completion"),
        streams=EVENTS,
        errors=REFUSALS,
    ),
    ("POST", "/v1/responses"): Operation(
        tag=COMPLETIONS,
        name="respond",
        summary="Answer, in the words of OpenAI's Responses API",
        about="The part that needs no memory: nothing is stored. Engines that have /v1/responses (vLLM, SGLang, "
        "TensorRT-LLM, llama.cpp) get it as it came, `store: true` too. For all others it becomes a chat that asks the "
        "same, functions and pictures included; `include`, `truncation`, `reasoning` and `text.verbosity` change "
        "nothing there, and what a chat can't say (tools of OpenAI's servers) is a 400 that names the field.",
        parameters=ASKING,
        body=ref("ResponseRequest"),
        example={"model": "default", "input": "Hello!", "stream": True},
        answer=ref("Response"),
        streams="OpenAI's `response.*` events, each with its name; the last is `response.completed` or "
        "`response.incomplete`.",
        errors=REFUSALS,
    ),
    ("POST", "/v1/messages"): Operation(
        tag=COMPLETIONS,
        name="converse",
        summary="Answer, in the words of Anthropic's Messages API",
        about="On any engine: the request becomes a chat that asks the same. The key may come as `x-api-key`; "
        "`anthropic-version` and `anthropic-beta` make no difference. What a chat can't say (documents but text, tools "
        "that Anthropic's servers run, threads) is a 400 that names the field. Errors have Anthropic's form: "
        "`type`, `error.type`, `error.message`, `request_id`.",
        parameters=ASKING,
        body=ref("MessagesRequest"),
        example={"model": "default", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello!"}]},
        answer=ref("Message"),
        streams="Anthropic's events, each with its name: `message_start`, `ping`, `content_block_start`, `_delta` and "
        "`_stop`, `message_delta`, `message_stop`; `error` where it breaks off.",
        errors=REFUSALS,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        tag=COMPLETIONS,
        name="countTokens",
        summary="How many tokens has the prompt of such a message?",
        about="Counted by a replica of the model, tools included, where its engine can (Headgate's own, vLLM); "
        "otherwise estimated from the bytes of the text, and `x-headgate-estimate: true` says so. Nothing is served.",
        body=ref("MessagesRequest"),
        example={"model": "default", "messages": [{"role": "user", "content": "Hello!"}]},
        answer=ref("TokenCount"),
        errors=REFUSALS,
    ),
    ("POST", "/v1/embeddings"): Operation(
        tag=COMPLETIONS,
        name="embed",
        summary="Embed texts",
        about="Sent to replicas whose engine has it; 404 `not_offered` where none of the model has. Headgate's own "
        "engine does not.",
        parameters=ASKING,
        body=ref("EmbeddingsRequest"),
        example={"model": "default", "input": ["a text", "another"]},
        answer=ref("Embeddings"),
        errors=REFUSALS,
    ),
    ("POST", "/v1/quote"): Operation(
        tag=COMPLETIONS,
        name="quote",
        summary="What would a completion meet now?",
        about="The body of a chat or a text completion, with the same headers and the same errors. It is not served: "
        "nothing is reserved, and no record is left. It counts as one request of its tenant's limit per minute, and as "
        "no tokens. Refused is told in the answer, with `Retry-After`; 429 is only for the question itself.",
        parameters=ASKING,
        body={"anyOf": [ref("ChatRequest"), ref("CompletionRequest")]},
        example={"model": "default", "messages": [{"role": "user", "content": "Hello!"}], "stream": True},
        answer=ref("Quote"),
        errors=REFUSALS,
    ),
    ("GET", "/v1/chat/completions"): _socket("chat_socket", "Chats on a WebSocket"),
    ("GET", "/v1/completions"): _socket("complete_socket", "Text completions on a WebSocket"),
    ("GET", "/v1/models"): Operation(
        tag=MODELS,
        name="models",
        summary="List the models",
        about="`created`, `owned_by` and `max_model_len` (its longest sequence, in tokens) are what replicas state, "
        "the shortest `max_model_len` where they differ. Not stated: `created` is 0, and there is no `max_model_len`.",
        answer=ref("Models"),
        errors=(401, 403),
    ),
    ("GET", "/v1/models/*"): Operation(
        tag=MODELS,
        name="model",
        summary="Look at one model",
        path="/v1/models/{model}",
        parameters=(Parameter(name="model", about="Its name; slashes may stay.", where="path"),),
        answer=ref("Model"),
        errors=(401, 403, 404),
    ),
    ("GET", "/health/live"): _open(HEALTH, "live", "Is the process alive?", answer=ref("Status")),
    ("GET", "/health/ready"): _open(
        HEALTH,
        "ready",
        "Can requests be served?",
        about="503 until a replica is ready, and while draining.",
        answer=ref("Status"),
        errors=(503,),
    ),
    ("GET", "/health"): _open(HEALTH, "health", "The same as /health/ready", answer=ref("Status"), errors=(503,)),
    ("GET", "/metrics"): _open(
        HEALTH,
        "metrics",
        "Figures for Prometheus; as OpenMetrics where `Accept` prefers that, with exemplars if traces are sent",
        content_type=CONTENT_TYPE,
    ),
    ("GET", "/"): _open(DOCS, "page", "The page: what is happening right now", content_type=HTML),
    ("GET", "/page/*"): _open(
        DOCS,
        "page_file",
        "A file of the page",
        path="/page/{file}",
        parameters=(Parameter(name="file", about="Its name.", where="path"),),
        content_type="text/plain",
        errors=(404,),
    ),
    ("GET", "/docs"): _open(DOCS, "docs", "This API, for people", content_type=HTML),
    ("GET", "/docs/style.css"): _open(
        DOCS, "docs_style", "How that page looks", content_type="text/css; charset=utf-8"
    ),
    ("GET", "/docs/try.js"): _open(
        DOCS, "docs_try", "How that page tries calls", content_type="text/javascript; charset=utf-8"
    ),
    ("GET", "/openapi.json"): _open(DOCS, "openapi", "This API, as OpenAPI 3.1", answer={"type": "object"}),
}
