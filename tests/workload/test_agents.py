"""Sessions of agents: each turn begins with all that was said before, and comes a while after the last one's end."""

import random
from itertools import pairwise

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.model.outcome import Outcome
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.sim.chains import chain_of
from headgate.sim.fleet import fleet_of
from headgate.sim.gateway import SimTicket
from headgate.sim.run import Level, run
from headgate.sim.world import World
from headgate.workload.arrival import BLOCK_TOKENS, Arrival, WorkloadError, follow_up
from headgate.workload.load import Workload
from headgate.workload.prompt import prompt_text

LOAD = "agents:rate=0.5,turns=4,prompt=1000-2000,new=100-300,output=50-80,think=2-3"


def first(text: str = LOAD, seed: int = 1) -> Arrival:
    return next(iter(Workload(text, duration_s=60.0).arrivals(seed)))


def test_a_session_has_its_turns_and_each_grows_by_what_is_new_and_the_answer() -> None:
    turn = first()
    assert (turn.turn, len(turn.later)) == (1, 3)
    while turn.later:
        plan, before = turn.later[0], turn
        turn = follow_up(turn, 100.0)
        assert turn.prompt_tokens == before.prompt_tokens + before.output_tokens + plan.new_tokens
        assert 102.0 <= turn.at_s <= 103.0
        assert (turn.turn, turn.session) == (before.turn + 1, before.session)
        assert turn.prefix[: len(before.prefix)] == before.prefix
        assert len(turn.prefix) * BLOCK_TOKENS >= turn.prompt_tokens + turn.output_tokens
        texts = [prompt_text(one, random.Random(1)) for one in (before, turn)]
        assert texts[1].startswith(texts[0])
    assert turn.turn == 4


def test_the_engine_has_the_answer_cached_too_when_the_next_turn_comes() -> None:
    turn = first()
    after = follow_up(turn, 10.0)
    had, wanted = chain_of(turn, 1, 16, turn.output_tokens), chain_of(after, 2, 16)
    shared = next((at for at, pair in enumerate(zip(had, wanted, strict=False)) if pair[0] != pair[1]), len(had))
    assert shared == len(had) == (turn.prompt_tokens + turn.output_tokens) // 16


def test_the_same_seed_gives_the_same_sessions_and_streams_of_a_mix_share_none() -> None:
    assert first() == first()
    assert first() != first(seed=2)
    mixed = list(Workload(f"a={LOAD}; b={LOAD}", duration_s=60.0).arrivals(1))
    assert len({one.session for one in mixed}) == len(mixed) == len({one.prefix[0] for one in mixed})
    assert len({follow_up(one, 5.0).prefix[0] for one in mixed}) == len(mixed)


def test_a_session_ends_before_its_context_is_too_long() -> None:
    turn = first("agents:rate=1,turns=50,prompt=1000,new=1000,output=100,think=1,max_prompt=5000")
    while turn.later:
        turn = follow_up(turn, 0.0)
    assert 3900 <= turn.prompt_tokens <= 5000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents", "agents: how many a second"),
        (
            "agents:rate=1,sessions=3",
            "agents: sessions is not for them; they have prompt, new, output, turns and think",
        ),
        ("poisson:rate=1,think=3", "poisson: think is for agents; try agents:rate=0.5,turns=20"),
        ("agents:rate=1,think=x", "agents: think is in seconds, as in 5 or 0.5-10, not 'x'"),
        ("agents:rate=1,think=9-2", "agents: think is in seconds"),
        ("agents:rate=1,turns=0", "agents: turns is"),
        ("agents:rate=1,start=5", "agents: time_scale and start are for traces"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Workload(text)


class Turns:
    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[int, float, float, int, Outcome]]] = {}

    def begin(self, world: World, dispatcher: Dispatcher) -> None:
        pass

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        one = ticket.arrival
        self.seen.setdefault(one.session or "", []).append((one.turn, one.at_s, now, ticket.cached, outcome))


@pytest.mark.parametrize("level", ["step", "gateway"])
def test_simulated_turns_wait_for_the_one_before_and_find_it_cached(level: Level) -> None:
    arrivals, turns = list(Workload(LOAD, duration_s=30.0).arrivals(3)), Turns()
    simulated = run(GatewayConfig(), arrivals, fleet_of(PROFILES["h100-llama3-8b"], 2), 3, level, onlooker=turns)
    assert simulated.results.ok.sum() == 4 * len(arrivals) == sum(map(len, turns.seen.values()))
    for session in turns.seen.values():
        assert [turn for turn, *_ in session] == [1, 2, 3, 4]
        for before, after in pairwise(session):
            assert 2.0 <= after[1] - before[2] <= 3.0
            assert after[3] >= 900  # of at least 1 000 tokens said before


def test_an_agent_that_gets_no_answer_gives_up() -> None:
    arrivals, turns = list(Workload(LOAD, duration_s=30.0).arrivals(3)), Turns()
    config = GatewayConfig()
    simulated = run(config, arrivals, fleet_of(PROFILES["h100-llama3-8b"], 1, slots=1), 3, onlooker=turns)
    refused = [session for session in turns.seen.values() if session[-1][4] is not Outcome.COMPLETED]
    assert all(len(session) <= 4 for session in turns.seen.values())
    assert sum(map(len, turns.seen.values())) == len(simulated.results.ok)
    assert all(outcome is Outcome.COMPLETED for session in refused for *_, outcome in session[:-1])
