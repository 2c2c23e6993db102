"""Grammars are compiled aside: what one of them costs, no other request pays."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from headgate.engine.grammar import compiling as module
from headgate.engine.grammar import trial
from headgate.engine.grammar.aside import GrammarThread
from headgate.engine.grammar.compiling import MOST_OF_ONE, MOST_SHARING, MOST_WAITING, Compiling
from headgate.engine.grammar.grammar import Compiled, Grammars, response_grammar
from headgate.engine.runner.llama import Model, library
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.model.errors import InvalidRequest, QueueFull, ServeError

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

ENDLESS: dict[str, Any] = {
    "type": "object",
    "patternProperties": {f"^k{n}[a-z]*$": {"type": "string"} for n in range(1200)},
}
"""Keeps llguidance busy for more than nine minutes."""


def grammar(schema: dict[str, Any]) -> str:
    text = response_grammar({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert text is not None
    return text


def pattern(expression: str) -> str:
    return grammar({"type": "string", "pattern": expression})


class Desk:
    """A Compiling and a loop that is turned by hand."""

    def __init__(self, grammars: Grammars) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self.compiling = Compiling(grammars, library().path, self._calls.put)

    def ask(self, text: str, client: str = "one", param: str = "response_format") -> list[Compiled | ServeError]:
        answers: list[Compiled | ServeError] = []
        self.compiling.compile(text, param, client, answers.append)
        return answers

    def answer(self, text: str, client: str = "one", param: str = "response_format") -> Compiled | ServeError:
        answers = self.ask(text, client, param)
        self.turn_until(answers)
        return answers[0]

    def turn_until(self, answers: list[Compiled | ServeError]) -> None:
        while not answers:
            self._calls.get(timeout=60)()


@pytest.fixture(scope="module")
def grammars(model: Model, tokenizer: Tokenizer) -> Iterator[Grammars]:
    grammars = Grammars(tokenizer, model.c)
    yield grammars
    grammars.close()


@pytest.fixture(scope="module")
def desk(grammars: Grammars) -> Iterator[Desk]:
    desk = Desk(grammars)
    yield desk
    desk.compiling.close()


def test_a_grammar_is_compiled_once_and_known_from_then_on(desk: Desk, grammars: Grammars) -> None:
    text = grammar({"type": "integer"})
    compiled = desk.answer(text)
    assert isinstance(compiled, Compiled)
    assert desk.ask(text) == [compiled]
    place = grammars.compile(text)
    assert not place.mask().all()
    place.close()


@pytest.mark.parametrize(
    "text",
    [
        grammar(ENDLESS),
        grammar({"allOf": [{"type": "string", "pattern": f"a.*b.{{{n}}}c"} for n in range(1, 60)]}),
        pattern("^(([a-z]{1,100}){1,100}){1,100}$"),
        pattern("^.*a.{200}b.{200}$"),
        grammar({"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(1400)}}),
        grammar({"type": "string", "pattern": "((("}),
        "start: " + '"a" ' * 40_000,
    ],
)
def test_what_costs_too_much_or_is_wrong_is_refused_soon_and_at_once_the_next_time(desk: Desk, text: str) -> None:
    refused = desk.answer(text, param="tools")
    assert isinstance(refused, InvalidRequest)
    assert refused.param == "tools"
    assert refused.message.startswith("tools: ")
    (again,) = desk.ask(text, param="response_format")
    assert isinstance(again, InvalidRequest)
    assert again.param == "response_format"


def test_an_endless_one_is_ended_by_its_cpu_time_and_the_next_is_served(desk: Desk) -> None:
    refused = desk.answer(grammar(ENDLESS | {"description": "another"}))
    assert isinstance(refused, InvalidRequest)
    assert f"more than {trial.CPU_S:g} s" in refused.message
    assert isinstance(desk.answer(grammar({"const": "the next"})), Compiled)


def test_other_threads_run_while_one_is_compiled(desk: Desk) -> None:
    gaps, done = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    desk.answer(grammar(ENDLESS | {"description": "a third"}))
    done.set()
    watcher.join()
    assert sorted(gaps)[-2] < 0.25  # before, the whole time that it took


def nice(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


def test_no_thread_of_low_priority_does_more_than_call_the_library(
    desk: Desk, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did, and held Python's lock, would stop every stream as long as others kept it from the cores."""
    called: list[tuple[str, int]] = []
    guidance = grammars.guidance

    def noting(name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(what: Any) -> Any:
            called.append((name, nice(threading.current_thread())))
            return call(what)

        return noted

    assert isinstance(desk.answer(grammar({"const": "before"})), Compiled)
    own = Desk(grammars)
    for name in ("new", "free"):
        monkeypatch.setattr(guidance, name, noting(name, getattr(guidance, name)))
    aside = GrammarThread(guidance)
    monkeypatch.setattr(own.compiling, "aside", aside)
    compiled = own.answer(grammar({"const": "as low as can be"}))
    assert isinstance(compiled, Compiled)
    assert nice(own.compiling._thread) == nice(threading.current_thread())
    grammars._compiled.clear()
    del compiled  # here, as the event loop and the engine's thread may
    aside.free(guidance.new(b'start: "x"'))
    own.compiling.close()
    aside.thread.join(10)
    low = max(trial.NICE, nice(threading.current_thread()))
    assert called[0] == ("new", low)
    assert ("free", low) in called
    assert all(level == low for name, level in called if name == "free")
    handle = guidance.new(b'start: "y"')
    aside.free(handle)  # after its end: here and now
    assert called[-1] == ("free", nice(threading.current_thread()))


def test_clients_take_turns_and_wait_in_bounded_numbers(desk: Desk) -> None:
    def numbered(client: str, number: int) -> str:
        return grammar({"const": f"{client} {number}"})

    greedy = [desk.ask(numbered("greedy", at), "greedy") for at in range(MOST_OF_ONE + 2)]
    assert isinstance(greedy[-1][0], QueueFull)  # the first of them is being compiled, and waits no more
    other = desk.ask(numbered("other", 0), "other")
    shared = [desk.ask(numbered("greedy", 1), "third") for _ in range(MOST_SHARING)]
    assert isinstance(shared[-1][0], QueueFull)
    desk.turn_until(other)
    assert isinstance(other[0], Compiled)
    assert not greedy[3]  # its client's fourth came before the other's first
    many = [desk.ask(numbered("many", at), f"client {at}") for at in range(MOST_WAITING + 2)]
    assert isinstance(many[-1][0], QueueFull)
    for answers in (*greedy, *shared, *many):
        desk.turn_until(answers)


def test_a_helper_that_died_is_replaced(desk: Desk) -> None:
    helper = desk.compiling._helper
    assert helper is not None
    assert os.getpriority(os.PRIO_PROCESS, helper.pid) == trial.NICE
    helper.kill()
    helper.wait()
    first = desk.answer(grammar({"const": "while it was dead"}))
    assert isinstance(first, ServeError)
    assert "send the request again" in first.message
    assert isinstance(desk.answer(grammar({"const": "while it was dead"})), Compiled)


def test_a_verdict_that_could_not_be_had_is_not_remembered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = grammar({"const": "undecided"})
    monkeypatch.setattr(module, "receive", lambda pipe: trial.receive(pipe) and trial.UNDECIDED.encode() + b"too busy")
    monkeypatch.setattr(module, "send", lambda pipe, data: trial.send(pipe, b"start: (("))
    assert isinstance(desk.answer(text), QueueFull)
    monkeypatch.undo()
    assert isinstance(desk.answer(text), Compiled)


def test_a_grammar_held_on_its_way_to_the_engine_outlives_the_kept_ones(desk: Desk, grammars: Grammars) -> None:
    text = grammar({"const": "held"})
    held = desk.answer(text)
    for number in range(40):
        grammars.make(grammar({"const": number}))
    assert grammars.known(text) is held


def test_following_a_grammar_has_a_budget_of_cpu_time(grammars: Grammars, tokenizer: Tokenizer) -> None:
    place = grammars.compile(pattern("^(.*a){50}$"))
    ends = set(tokenizer.eog)
    place._left_s = -1.0  # as if it had been slow for long
    place.accept(tokenizer.encode('"')[0])
    assert place.stuck
    assert set(place.mask().nonzero()[0].tolist()) == ends
    place.close()


def test_the_bodies_of_this_file_are_as_large_as_a_schema_may_be() -> None:
    assert len(json.dumps(ENDLESS)) < 65_536


def test_an_engine_that_ends_gives_up_what_is_being_tried_out(grammars: Grammars) -> None:
    desk = Desk(grammars)
    assert isinstance(desk.answer(grammar({"const": "before the end"})), Compiled)
    desk.ask(grammar(ENDLESS | {"description": "at the end"}))
    helper = desk.compiling._helper
    began = time.perf_counter()
    desk.compiling.close()
    assert time.perf_counter() - began < 5
    assert helper is not None
    assert helper.returncode is not None
