"""instructor: objects of a class from a chat, by a demanded call, by a schema, and streamed."""

import instructor
from checks import KEY, MODEL, URL, check, main
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

PLAIN = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED = [{"role": "user", "content": "Where is the Louvre?"}]


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


@check
def by_a_demanded_call() -> None:
    client = instructor.from_openai(PLAIN, mode=instructor.Mode.TOOLS)
    found = client.chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Place, max_tokens=120, max_retries=0
    )
    assert isinstance(found, Place)


@check
def by_a_schema() -> None:
    client = instructor.from_openai(PLAIN, mode=instructor.Mode.JSON_SCHEMA)
    found = client.chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Place, max_tokens=120, max_retries=0
    )
    assert isinstance(found, Place)


@check
def streamed_in_parts() -> None:
    client = instructor.from_openai(PLAIN, mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL, messages=ASKED, response_model=Place, max_tokens=120, max_retries=0
        )
    )
    assert parts[-1].city is not None
    assert parts[-1].country is not None


main()
