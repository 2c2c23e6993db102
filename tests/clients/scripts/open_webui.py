"""The calls that Open WebUI makes of an OpenAI server, as its backend and its page make them: models, a streamed chat
with its extra fields, a title by an unstreamed chat, and the page's own call from another origin."""

import json
import urllib.error
import urllib.request
from typing import Any

from checks import KEY, MODEL, URL, check, main


def call(path: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    data = None if body is None else json.dumps(body).encode()
    given = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, given)) as answer:
            return answer.status, dict(answer.headers.items()), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers.items()), error.read()


@check
def models() -> None:
    status, _, body = call("/v1/models")
    assert status == 200
    assert all({"id", "object"} <= model.keys() for model in json.loads(body)["data"])


@check
def a_streamed_chat_with_its_fields() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    body = {"model": MODEL, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    status, headers, said = call("/v1/chat/completions", {**body, "max_tokens": 16, "temperature": 0.7, "seed": 1})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert said.rstrip().endswith(b"data: [DONE]")


@check
def a_title_in_one_piece() -> None:
    prompt = "### Task:\nGenerate a concise, 3-5 word title.\n### Chat History:\nUSER: Hello!"
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "stream": False,
        "max_completion_tokens": 20,
    }
    status, _, said = call("/v1/chat/completions", body, **{"x-openwebui-user-id": "1"})
    assert status == 200
    assert json.loads(said)["choices"][0]["message"]["content"]


@check
def a_page_from_elsewhere_is_refused_until_it_is_allowed() -> None:
    status, _, said = call("/v1/models", **{"origin": "http://webui.example", "sec-fetch-site": "cross-site"})
    assert status in (200, 403)
    assert status == 200 or b"cors.origins" in said


main()
