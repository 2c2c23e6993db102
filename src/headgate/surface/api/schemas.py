"""Defines the schemas of bodies and answers. The gateway reads a few fields and passes the rest through, so that these
name the fields that mean something here. Types come from the classes that bodies are decoded into; records,
explanations, rollouts and usage are generated whole from the classes that are encoded or decoded."""

from typing import Any

import msgspec

from headgate.config.file import hints_of
from headgate.explain.costs import TenantCost, TenantTail
from headgate.explain.explanation import Explanation
from headgate.gateway.intake.fields import ChatFields
from headgate.model.errors import ContextOverflow, Refused, Unauthorized, UnknownModel
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.surface.api.batches import BATCH_SCHEMAS
from headgate.surface.api.operation import Schema, ref
from headgate.surface.rollout_admin import RolloutStart
from headgate.surface.usage import UsageRow
from headgate.wire.errors import CODES, STATUS

IN_OPENAIS_WORDS = {
    error.outcome: str(error.code)
    for error in (Refused("", Outcome.OVER_LIMIT, None), Unauthorized(""), UnknownModel(""), ContextOverflow(""))
}
REFUSED_CODES = sorted(
    {
        *CODES.values(),
        *(IN_OPENAIS_WORDS.get(outcome, outcome.value) for outcome in Outcome if STATUS[outcome] >= 400),
    }
)


def of(kind: str | list[str], about: str = "", **more: Any) -> Schema:
    return {"type": kind, **({"description": about} if about else {}), **more}


def obj(about: str, needed: tuple[str, ...] = (), **fields: Schema) -> Schema:
    made = of("object", about, properties=fields)
    return {**made, "required": list(needed)} if needed else made


def array(items: Schema, about: str = "") -> Schema:
    return of("array", about, items=items)


TEXT = of("string")
COUNT = of("integer", minimum=0)
ANY_OBJECT = of("object", additionalProperties=True)
SAMPLING = (
    "The engine's own default where it is not given. The embedded engine samples as its model recommends"
    " (`default_sampling_params` in its /v1/models) where none of temperature, top_p, top_k and min_p is given."
)


def types_of(kind: type) -> dict[str, Schema]:
    """The JSON types of a class's fields. Null is left out: it means the same as leaving the field out."""
    _, made = msgspec.json.schema_components([kind], schema_hook=lambda _: TEXT)
    found: dict[str, Schema] = {}
    for name, schema in made[kind.__name__]["properties"].items():
        options = [one for one in schema.get("anyOf", (schema,)) if one != {"type": "null"}]
        found[name] = {"oneOf": options} if len(options) > 1 else {**options[0]}
        found[name].pop("default", None)
    return found


ASKED = types_of(ChatFields)
# The class itself is compiled, and has lost the types of its fields there.
OF_A_REPLICA = types_of(msgspec.defstruct("Replica", list(hints_of(Replica).items())))


def asked(name: str, about: str = "", **more: Any) -> Schema:
    """A field of a client's body; its type is the one that it is decoded into."""
    return {**ASKED[name], **({"description": about} if about else {}), **more}


def setting(name: str, about: str = "", **more: Any) -> Schema:
    """A setting of a replica, as in the config file."""
    return {**OF_A_REPLICA[name], **({"description": about} if about else {}), **more}


ASKING: dict[str, Schema] = {
    "model": asked(
        "model",
        "A name from /v1/models, or `default` for whatever is served. An unknown name is a 404 `model_not_found`"
        " that lists those there are; until a replica has listed its models, any name goes.",
    ),
    "stream": asked("stream", "Answer as server-sent events.", default=False),
    "stream_options": obj("", include_usage=of("boolean", "A last chunk with usage.", default=False)),
    "max_tokens": asked("max_tokens", "Never raised; lowered to the task's, lane's or tenant's cap.", minimum=1),
    "max_completion_tokens": asked("max_completion_tokens", "The same.", minimum=1),
    "temperature": asked("temperature", f"0 to 2. {SAMPLING}", minimum=0),
    "top_p": asked("top_p", "0 to 1. As with temperature.", minimum=0, maximum=1),
    "n": asked(
        "n",
        "1 to 128. Each answer takes a slot of the replica and its own tokens; its lane bounds n × prompts.",
        minimum=1,
        maximum=128,
    ),
    "seed": asked("seed"),
    "stop": asked("stop", "At most 4, or as many as the engine and the lane take."),
    "presence_penalty": asked("presence_penalty", "-2 to 2.", minimum=-2, maximum=2),
    "frequency_penalty": asked("frequency_penalty", "-2 to 2.", minimum=-2, maximum=2),
    "logit_bias": asked("logit_bias", "By token id, -100 to 100; at most 1024 entries."),
    "top_logprobs": asked("top_logprobs", "0 to 20.", minimum=0, maximum=20),
    "user": asked("user", "Requests of one user prefer one replica."),
    "service_tier": asked("service_tier", "`flex` goes to the batch lane."),
    "lane": asked("lane", "For trusted keys."),
    "priority": asked("priority", "For trusted keys: 0 goes first.", minimum=-100, maximum=100),
}
USAGE = obj(
    "",
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=obj("", cached_tokens=of("integer", "Found in the engine's cache.")),
)
DONE = obj("", ("done", "said"), done=of("boolean"), said=of("string", "What came of it."))

SCHEMAS: dict[str, Schema] = {
    "Error": obj(
        "OpenAI's error object. After a stream has begun it comes as an event, and no `[DONE]` follows.",
        ("error",),
        error=obj(
            "",
            ("message", "type", "param", "code"),
            message=of("string", "What is wrong, and what to do about it."),
            type=of("string", enum=["invalid_request_error", "server_error", "requests", "tokens"]),
            param=of(["string", "null"], "The field at fault, as a path."),
            code=of(["string", "null"], f"For machines. Ours: {', '.join(REFUSED_CODES)}; or the engine's own."),
        ),
    ),
    "ChatRequest": obj(
        "OpenAI's body. What is not named here goes to the engine as it came.",
        ("messages",),
        messages=asked("messages", "At least one."),
        tools=asked("tools"),
        response_format=ANY_OBJECT,
        **ASKING,
    ),
    "ChatCompletion": obj(
        "As the engine gave it.",
        id=TEXT,
        object=of("string", enum=["chat.completion"]),
        created=COUNT,
        model=TEXT,
        choices=array(obj("", index=COUNT, message=ANY_OBJECT, finish_reason=of(["string", "null"]),
                          headgate_stop=of("string", "`repetition`, `time` or `grammar`: why it was ended early."))),
        usage=USAGE,
    ),
    "CompletionRequest": obj(
        "OpenAI's body. What is not named here goes to the engine as it came.",
        ("prompt",),
        prompt=asked("prompt", "Text, several, or token ids."),
        **ASKING,
    ),
    "Completion": obj(
        "As the engine gave it.",
        id=TEXT,
        object=of("string", enum=["text_completion"]),
        created=COUNT,
        model=TEXT,
        choices=array(obj("", index=COUNT, text=TEXT, finish_reason=of(["string", "null"]))),
        usage=USAGE,
    ),
    "EmbeddingsRequest": obj(
        "OpenAI's body.",
        ("input",),
        input=asked("input", "Text, several, or token ids."),
        encoding_format=of("string", enum=["float", "base64"]),
        dimensions=asked("dimensions", minimum=1),
        **{name: ASKING[name] for name in ("model", "user", "service_tier", "lane", "priority")},
    ),
    "Embeddings": obj(
        "As the engine gave it.",
        object=of("string", enum=["list"]),
        data=array(obj("", object=TEXT, index=COUNT, embedding={"oneOf": [array(of("number")), TEXT]})),
        model=TEXT,
        usage=USAGE,
    ),
    "ResponseRequest": obj(
        "OpenAI's body, as far as it needs no memory. `previous_response_id`, `conversation`, `background` and "
        "`prompt` are refused, and `store: true` where the engine gets a chat.",
        ("input",),
        input=asked("input", "Text, or the turns so far."),
        instructions=TEXT,
        max_output_tokens=asked(
            "max_output_tokens", "Never raised; lowered to the task's, lane's or tenant's cap.", minimum=1
        ),
        text=obj("", format=ANY_OBJECT),
        store=of("boolean", "The gateway keeps nothing; an engine with /v1/responses is told."),
        tools=array(ANY_OBJECT, "Functions; of other tools only what the engine itself has."),
        metadata=ANY_OBJECT,
        **{name: ASKING[name] for name in ("model", "stream", "temperature", "top_p", "user", "service_tier")},
    ),
    "Response": obj(
        "",
        id=TEXT,
        object=of("string", enum=["response"]),
        created_at=of("number"),
        status=of("string", enum=["completed", "incomplete", "failed", "in_progress"]),
        incomplete_details={"oneOf": [obj("", reason=TEXT), {"type": "null"}]},
        model=TEXT,
        output=array(ANY_OBJECT),
        usage=obj("", input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
    ),
    "MessagesRequest": obj(
        "Anthropic's body, as far as a chat can say it.",
        ("messages",),
        messages=array(ANY_OBJECT, "Turns: text, or blocks of text, image, tool_use, tool_result and thinking."),
        system={"oneOf": [TEXT, array(ANY_OBJECT)]},
        max_tokens=asked("max_tokens", "May be left out; lowered to the task's, lane's or tenant's cap.", minimum=1),
        stop_sequences=array(TEXT),
        tools=array(ANY_OBJECT, "Tools with an input_schema, which the client runs."),
        tool_choice=ANY_OBJECT,
        thinking=obj("enabled or adaptive: reasoning comes as blocks of its own; else it is left out.", type=TEXT),
        output_config=obj("", format=ANY_OBJECT),
        metadata=obj("", user_id=of("string", "Requests of one user prefer one replica.")),
        **{name: ASKING[name] for name in ("model", "stream", "temperature", "top_p")},
    ),
    "Message": obj(
        "",
        id=TEXT,
        type=of("string", enum=["message"]),
        role=of("string", enum=["assistant"]),
        model=TEXT,
        content=array(ANY_OBJECT),
        stop_reason=of("string", enum=["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]),
        stop_sequence=of(["string", "null"]),
        usage=obj(
            "", input_tokens=of("integer", "Of the prompt, without those in the engine's cache.", minimum=0),
            cache_read_input_tokens=COUNT, cache_creation_input_tokens=COUNT, output_tokens=COUNT,
        ),
    ),
    "TokenCount": obj("", ("input_tokens",), input_tokens=COUNT),
    "Quote": obj(
        "Times are from the arrival of the request. What others send meanwhile may change them.",
        ("object", "model", "admitted", "lane", "waits"),
        object=of("string", enum=["quote"]),
        model=TEXT,
        admitted=of("boolean", "It would be sent, or let wait."),
        lane=of("string", "The lane that it would be in, after any relegation."),
        relegated_from=of(["string", "null"], "The lane in which it could not be in time."),
        waits=of("boolean", "It would be let wait, because no replica can take it now."),
        replica_class={
            "oneOf": [
                obj("", kind=of(["string", "null"], "The engine."), gpu_type=of(["string", "null"]),
                    quantization=of(["string", "null"])),
                {"type": "null"},
            ],
            "description": "The class of the replica that would have it, or of all that may. Null: they differ.",
        },
        expected_ttft_ms=of(["number", "null"], "Half of such requests have their first token sooner."),
        p99_ttft_ms=of(["number", "null"], "99 of 100 such requests have their first token by then. Null: too few were"
                       " seen, or more than one in a hundred leaves its lane without one."),
        retry_after_ms=of(["number", "null"], "When to come back, where it would be refused. Null: now, or never."),
        reason=of(["string", "null"], "Why it would be refused, as the code of the error."),
        message=of(["string", "null"], "The same in words, or what it would wait for."),
    ),
    "Model": obj(
        "",
        ("id", "object"),
        id=TEXT,
        object=of("string", enum=["model"]),
        created=COUNT,
        owned_by=TEXT,
        max_model_len=COUNT,
        served_by=TEXT,
    ),
    "Models": obj("", ("object", "data"), object=of("string", enum=["list"]), data=array(ref("Model"))),
    "Status": obj("", ("status",), status=of("string", enum=["live", "ready"])),
    "Done": DONE,
    "ReplicaSettings": obj(
        "As in the config file.",
        ("url",),
        url=setting("url", "http://host:port, https://… or unix:/path."),
        id=setting("id"),
        kind=setting("kind", "Which engine it is; found out otherwise."),
        model=setting("model"),
        slots=setting("slots", "Requests it may have at once; found out otherwise.", minimum=1),
        weight=setting("weight"),
        priority=setting("priority", "It heeds a priority in the request."),
        lanes=setting("lanes", "It serves no others."),
    ),
    "ByName": of("object", "Settings by name, as in the config file.", additionalProperties=ANY_OBJECT),
    "Explained": obj(
        "", ("record", "explanation"), record=ref("Record"), explanation=ref("Explanation"), running=of("boolean")
    ),
    "Blame": obj(
        "", by=TEXT, lane=of(["string", "null"]), last_s=of("number"), of=COUNT, costs=array(ref("TenantCost")),
        tenants=array(ref("TenantTail")),
    ),
    "Slow": obj("", slow=array(ANY_OBJECT), by=TEXT, lane=of(["string", "null"]), last_s=of("number"), of=COUNT),
}  # fmt: skip


def schemas() -> dict[str, Schema]:
    """All schemas by name, the generated ones included."""
    _, made = msgspec.json.schema_components(
        [Record, Explanation, RolloutStart, UsageRow, TenantCost, TenantTail],
        ref_template="#/components/schemas/{name}",
    )
    encoded: dict[str, Schema] = msgspec.json.decode(msgspec.json.encode(made))  # before that, defaults are tuples
    return {**SCHEMAS, **BATCH_SCHEMAS, **encoded}
