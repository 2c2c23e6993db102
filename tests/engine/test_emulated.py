"""An engine that computes nothing: its times are the profile's, all else is the real engine's."""

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from openai import AsyncOpenAI

from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.engine import Engine, EngineRequest, SequenceOutput
from headgate.engine.runner.emulated_runner import MOST_BEHIND_S, EmulatedRunner
from headgate.engine.runner.emulated_tokenizer import VOCABULARY, EmulatedTokenizer
from headgate.engine.server import EngineServer
from headgate.engine.status import Emulation
from headgate.machine.profile import PROFILES, Profile, StepCost
from headgate.machine.step_features import shape
from headgate.model.clock import monotonic
from headgate.model.errors import InvalidRequest
from headgate.model.sampling import Sampling
from headgate.model.sequence import Sequence
from headgate.model.step import Drop, Restore, Row, Step, Trim
from headgate.policy.batching.output_length import OutputLength
from headgate.wire.server import HttpServer
from tests.engine.process import TESTED, ask
from tests.scripted import check_balance, sequence

H100 = PROFILES["h100-llama3-8b"]
QUICK = replace(H100, name="quick", cost=StepCost(fixed=0.004, per_prefill=2e-6), slots=8, context=512, kv_tokens=4096)
WORDS = EmulatedTokenizer().words


class Hand:
    """A clock that moves by each wait, and a little by each reading."""

    def __init__(self, look_s: float = 0.0, oversleep_s: float = 0.0) -> None:
        self.now = 1000.0
        self.look_s = look_s
        self.oversleep_s = oversleep_s

    def __call__(self) -> float:
        self.now += self.look_s
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds + self.oversleep_s
        return False


def runner(hand: Hand, profile: Profile = H100, dilation: float = 1.0) -> EmulatedRunner:
    return EmulatedRunner(profile, WORDS, rng=random.Random(1), dilation=dilation, clock=hand, wait=hand.wait)


def decoding(number: int, prompt: int = 50, **settings: Any) -> Sequence:
    one = sequence(number, range(prompt))
    one.sampling = Sampling(**settings)
    one.tokens.append(WORDS[0])
    return one


def decode(*sequences: Sequence) -> Step:
    return Step((), tuple(Row(one, slot, len(one.tokens) - 1, 1, True) for slot, one in enumerate(sequences)))


# -- the runner ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilation", [1.0, 7.5])
def test_a_step_takes_the_modelled_time(dilation: float) -> None:
    hand = Hand()
    made = runner(hand, dilation=dilation)
    one = decoding(1)
    made.open(one)
    before, step = hand.now, decode(one)
    made.run(step)
    assert hand.now - before == pytest.approx(H100.step_s(shape(step)) * dilation)
    assert made.model_s == pytest.approx(hand.now - before)


def test_choosing_telling_and_waking_late_are_part_of_the_modelled_time() -> None:
    hand = Hand(look_s=0.0002, oversleep_s=0.0004)
    made = runner(hand)
    one = decoding(1)
    made.open(one)
    before, step = hand.now, decode(one)
    for _ in range(500):
        made.run(step)
        hand.now += 0.003  # the engine books it, tells everybody and plans the next
    modelled = 500 * H100.step_s(shape(step))
    assert hand.now - before == pytest.approx(modelled, rel=0.002)
    assert made.behind_s == 0.0


def test_what_an_engine_was_idle_is_not_caught_up() -> None:
    hand = Hand()
    made = runner(hand)
    one = decoding(1)
    made.open(one)
    made.run(decode(one))
    made.close(1)
    hand.now += 60.0
    made.open(one)
    before, step = hand.now, decode(one)
    made.run(step)
    assert hand.now - before == pytest.approx(H100.step_s(shape(step)))
    assert made.behind_s == 0.0


def test_a_step_of_moves_alone_takes_what_they_take() -> None:
    hand = Hand()
    made = runner(hand)
    hand.now += 60.0
    before = hand.now
    assert made.run(Step((Restore(9, 4, 8192), Trim(3, 0), Drop(9)), ())) == []
    assert hand.now - before == pytest.approx(2**30 / 25e9)
    assert made.behind_s == 0.0


def test_a_machine_that_is_too_slow_is_told_so_and_does_not_burst() -> None:
    hand = Hand()
    made = runner(hand)
    one = decoding(1)
    made.open(one)
    made.run(decode(one))
    hand.now += 5.0  # it was stopped, or had something else to do
    step = decode(one)
    took = H100.step_s(shape(step))
    made.run(step)
    assert made.behind_s == pytest.approx(5.0 - MOST_BEHIND_S)
    before = hand.now
    for _ in range(100):
        made.run(step)
    assert hand.now - before == pytest.approx(101 * took - MOST_BEHIND_S, rel=0.01)


def test_nothing_drawn_for_a_chunk_that_does_not_end_its_prompt() -> None:
    hand = Hand()
    made = runner(hand)
    one = sequence(1, range(100))
    made.open(one)
    assert made.run(Step((), (Row(one, 0, 0, 40, False),))) == []
    (said,) = made.run(Step((), (Row(one, 0, 40, 60, True),)))
    assert said.sequence_id == 1
    assert said.tokens[0] in WORDS


def test_words_are_varied_and_those_of_a_seed_are_the_same_again_even_in_a_continuation() -> None:
    made = runner(Hand())

    def say(number: int, count: int, prompt: list[int], **settings: Any) -> list[int]:
        one = sequence(number, prompt)
        one.sampling = Sampling(**settings)
        made.open(one)
        for _ in range(count):
            (said,) = made.run(Step((), (Row(one, 0, len(one.tokens) - 1, 1, True),)))
            one.tokens.append(said.tokens[0])
        return one.tokens[len(prompt) :]

    prompt = list(range(30))
    whole = say(1, 200, prompt, seed=5)
    assert len(set(whole)) > 60
    assert say(2, 200, prompt, seed=5) == whole
    assert say(3, 150, prompt + whole[:50], seed=5) == whole[50:]
    assert say(4, 200, prompt, seed=6) != whole
    greedy = say(5, 100, prompt, temperature=0.0, seed=1)
    assert say(6, 100, prompt, temperature=0.0, seed=2) == greedy


def test_logprobs_are_there_when_asked_for_and_a_grammar_is_refused() -> None:
    made = runner(Hand())
    for number, wanted, tops in ((1, 0, 0), (2, 3, 1)):
        one = decoding(number, top_logprobs=wanted)
        made.open(one)
        (said,) = made.run(decode(one))
        assert [(entry.token, len(entry.top)) for entry in said.logprobs] == [(said.tokens[0], tops)]
    with pytest.raises(InvalidRequest, match="emulated"):
        made.open(decoding(3, grammar="start: /a/"))


def test_a_wait_ends_when_the_engine_is_to_stop() -> None:
    """A step of an hour would hold up the end for an hour."""
    slow = replace(QUICK, cost=StepCost(fixed=600.0))
    heard: list[SequenceOutput] = []
    rng = random.Random(1)
    engine, _ = emulated_engine(
        slow, emulated_config(slow), clock=monotonic, sink=heard.extend, ids=itertools.count(1), rng=rng
    )
    engine.start()
    engine.submit(EngineRequest(sequence(1, range(20))))
    runs = threading.Event()
    while not engine.batcher.running:
        runs.wait(0.001)
    engine.stop()
    assert engine.failed is not None


# -- the tokenizer -----------------------------------------------------------------------------------------------


def test_about_four_bytes_are_a_token_and_a_shared_beginning_shares_its_tokens() -> None:
    tokenizer = EmulatedTokenizer()
    text = "It was the best of times, it was the worst of times. " * 20
    tokens = tokenizer.encode(text)
    assert len(tokens) == -(-len(text) // 4)
    assert 0 <= min(tokens) <= max(tokens) < tokenizer.n_vocab == VOCABULARY
    assert tokenizer.encode(text + "And more, é \ud800.")[: len(text) // 4] == tokens[: len(text) // 4]
    assert tokenizer.encode("") == []
    assert all(tokenizer.piece(token) for token in tokens[:50])


def test_a_reply_that_comes_back_in_the_next_turn_is_the_tokens_that_were_said() -> None:
    tokenizer = EmulatedTokenizer()
    said = [WORDS[n * 37 % len(WORDS)] for n in range(50)]
    reply = b"".join(tokenizer.piece(token) for token in said).decode()
    assert len(set(WORDS)) == len(WORDS)
    first: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"}]
    asked = tokenizer.encode_chat(first)
    later = tokenizer.encode_chat(
        [*first, {"role": "assistant", "content": reply}, {"role": "user", "content": "And?"}]
    )
    assert later[: len(asked) + len(said)] == [*asked, *said]
    assert tokenizer.spelling(said[0]) == tokenizer.piece(said[0])


def test_tools_calls_and_open_ends_are_in_a_chats_tokens() -> None:
    tokenizer = EmulatedTokenizer()
    chat: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    plain = tokenizer.encode_chat(chat)
    assert len(tokenizer.encode_chat(chat, tools=[{"type": "function"}])) > len(plain)
    assert tokenizer.encode_chat(chat, add_generation_prompt=False) == plain[: -1 - len(tokenizer.encode("assistant"))]
    opened = [*chat, {"role": "assistant", "content": " the"}]
    assert tokenizer.encode_chat(opened, continue_final_message=True) == [*plain, *tokenizer.encode(" the")]
    call = [*chat, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    assert len(tokenizer.encode_chat(call)) > len(plain)


def test_the_model_library_is_not_loaded() -> None:
    code = (
        "import sys; import headgate.engine.emulation as e; from headgate.engine.server import EngineServer;"
        "from headgate.engine.runner import llama; e.EmulatedTokenizer().encode('x');"
        "assert llama.library.cache_info().currsize == 0; assert 'xllamacpp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": TESTED})


# -- behind the real server ---------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(profile: Profile, dilation: float = 1.0) -> Any:
    config = emulated_config(profile)
    server = EngineServer(config, monotonic, Emulation(profile.name, dilation))
    engine, intake = emulated_engine(
        profile,
        config,
        clock=monotonic,
        sink=server.sink,
        ids=itertools.count(1),
        rng=random.Random(1),
        dilation=dilation,
    )
    http = HttpServer(server.router, clock=monotonic)
    port = await http.listen("127.0.0.1", 0)
    server.adopt(engine, intake)
    engine.start()
    try:
        await server.warm()
        yield engine, f"http://127.0.0.1:{port}"
    finally:
        await http.drain(1)
        await asyncio.to_thread(engine.stop)


def served(
    check: Callable[[Engine, str, AsyncOpenAI], Awaitable[None]], profile: Profile = QUICK, dilation: float = 1.0
) -> None:
    async def main() -> None:
        async with (
            serving(profile, dilation) as (engine, url),
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            await check(engine, url, client)

    uvloop.run(main())


def test_an_answer_has_as_many_tokens_as_asked_for_in_about_the_modelled_time() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        # A fraction of a second: whatever else runs on this machine may add to it, but nothing may take from it.
        began = monotonic()
        answer = await client.completions.create(model="default", prompt="Once upon a time", max_tokens=60, seed=3)
        took = monotonic() - began
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 60
        assert answer.usage.prompt_tokens == 4
        assert answer.choices[0].finish_reason == "length"
        words = answer.choices[0].text.split()
        assert len(words) == 60
        assert len(set(words)) > 25
        modelled = 60 * QUICK.cost.fixed * 2
        assert modelled - 0.001 <= took <= 3 * modelled

    served(check, dilation=2.0)


def test_a_stream_gives_token_by_token_and_a_stop_string_ends_it() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "Hi"}], max_tokens=12, seed=3, stream=True
            )
        ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert len(text) == 12 * 4
        assert len(chunks) == 12
        stop = text[20:23]
        stopped = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Hi"}], max_tokens=12, seed=3, stop=[stop]
        )
        assert stopped.choices[0].message.content == text[: text.index(stop)]
        assert stopped.choices[0].finish_reason == "stop"

    served(check)


def test_it_says_everywhere_that_it_is_emulated_and_how_far_time_is_stretched() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        def get(path: str) -> Awaitable[str]:
            return asyncio.to_thread(lambda: ask(url + path)[1].decode())

        card = json.loads(await get("/v1/models"))["data"][0]
        assert card["owned_by"] == "headgate-emulated"
        assert card["id"] == "emulated-quick"
        assert card["max_model_len"] == QUICK.context
        figures = await get("/metrics")
        assert 'headgate_engine_emulated{profile="quick",dilation="1.5"} 1\n' in figures
        assert "headgate_engine_emulation_behind_seconds_total" in figures
        page = await get("/")
        assert "emulated" in page
        assert "stretched 1.5 times" in page
        answer = await client.completions.create(model="default", prompt="Hello", max_tokens=2)
        assert answer.system_fingerprint == "emulated-quick-x1.5"
        stream = await client.completions.create(model="default", prompt="Hello", max_tokens=2, stream=True)
        assert {chunk.system_fingerprint async for chunk in stream} == {"emulated-quick-x1.5"}

    served(check, dilation=1.5)


def test_a_real_engine_says_nothing_of_emulation() -> None:
    async def main() -> None:
        server = EngineServer(replace(emulated_config(QUICK), model_name="real"), monotonic)
        http = HttpServer(server.router, clock=monotonic)
        port = await http.listen("127.0.0.1", 0)
        for path in ("/v1/models", "/", "/metrics"):
            body = (await asyncio.to_thread(ask, f"http://127.0.0.1:{port}{path}"))[1].decode()
            assert "headgate-emulated" not in body
            assert "headgate_engine_emulated{" not in body
        await http.drain(1)

    uvloop.run(main())


def test_a_shared_prefix_comes_from_the_cache() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        shared = "All happy families are alike; each unhappy family is unhappy in its own way. " * 8
        for number in range(3):
            answer = await client.completions.create(model="default", prompt=f"{shared}{number}", max_tokens=1)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens
            assert cached == (0 if number == 0 else len(shared) // 4 // 16 * 16)

    served(check)


@pytest.mark.parametrize(("host_tokens", "kind"), [(4096, "swaps"), (0, "recomputes")])
def test_under_memory_pressure_sequences_are_preempted_and_all_are_answered_in_full(
    host_tokens: int, kind: str
) -> None:
    """Each is predicted to say little and says much: together they outgrow the memory that admitted them."""
    tight = replace(
        QUICK, cost=StepCost(fixed=0.001), kv_tokens=640, host_tokens=host_tokens, load_bytes_per_s=25e9, slots=8
    )

    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        answers = await asyncio.gather(
            *(client.completions.create(model="default", prompt=f"{n:064d}", max_tokens=100, seed=n) for n in range(8))
        )
        assert [len(answer.choices[0].text) for answer in answers] == [400] * 8
        counts = engine.batcher.counts
        assert getattr(counts, kind) > 0
        assert getattr(counts, "recomputes" if kind == "swaps" else "swaps") == 0
        assert engine.batcher.ledger.owned_blocks == 0
        check_balance(engine.batcher)

    async def with_a_low_guess(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        engine.batcher._output = engine.batcher._admission._output = OutputLength(8, 8)
        await check(engine, url, client)

    served(with_a_low_guess, tight)


def test_promises_are_stretched_with_time_and_what_a_request_asks_for_is_not() -> None:
    from headgate.engine.openai import TextBody

    for dilation in (1.0, 4.0):
        _, intake = emulated_engine(
            QUICK,
            emulated_config(QUICK),
            clock=monotonic,
            sink=lambda said: None,
            ids=itertools.count(1),
            rng=random.Random(1),
            dilation=dilation,
        )
        (plain,), _ = intake.sequences(TextBody(prompt="Hello", stream=True), 100.0)
        assert plain.first_token_by == pytest.approx(100.0 + 0.5 * dilation)
        assert plain.gap_target_s == pytest.approx(0.2 * dilation)
        (asking,), _ = intake.sequences(TextBody(prompt="Hello", tpot_target_ms=50.0, ttft_target_ms=300.0), 100.0)
        assert asking.first_token_by == pytest.approx(100.3)
        assert asking.gap_target_s == pytest.approx(0.05)
