"""A replica's memory at the gateway's level: what requests share is counted once, and kept for as long as it fits."""

import random

from headgate.sim.memory import ReplicaMemory
from headgate.workload.arrival import Arrival
from tests.sim.scene import machine


def memory(**changes: object) -> ReplicaMemory:
    return ReplicaMemory(machine(**{"kv_tokens": 8192, "host_tokens": 0, "paged": True, **changes}))


def asked(prompt: int, *prefix: int) -> Arrival:
    return Arrival(0.0, prompt, 10, prefix=prefix)


def serve(kept: ReplicaMemory, number: int, arrival: Arrival) -> tuple[int, int]:
    """Admits, computes and ends a request; returns what it found."""
    kept.hold(arrival, 10, 1)
    found = kept.find(arrival)
    kept.computed(arrival, arrival.prompt_tokens)
    kept.release(arrival, number, 10, 1, 10)
    return found


def test_requests_with_the_same_beginning_hold_it_once() -> None:
    kept = memory()
    kept.hold(asked(1200, 1, 2), 100, 1)
    assert kept.taken == 1300
    assert kept.needs(asked(1100, 1, 2), 50, 2) == 76 + 100
    assert kept.needs(asked(1100, 1, 3), 50, 2) == 588 + 100
    assert kept.needs(asked(1100, 2, 1), 50, 2) == 1100 + 100
    kept.hold(asked(1100, 1, 2), 50, 2)
    assert kept.taken == 1300 + 176
    kept.release(asked(1200, 1, 2), 1, 100, 1, 100)
    assert kept.taken == 1024 + 176
    kept.release(asked(1100, 1, 2), 2, 50, 2, 50)
    assert kept.taken == 0


def test_where_memory_is_not_paged_each_request_and_each_choice_has_its_own() -> None:
    kept = memory(paged=False)
    kept.hold(asked(1200, 1, 2), 100, 1)
    assert kept.needs(asked(1100, 1, 2), 50, 2) == 2300
    kept.hold(asked(1100, 1, 2), 50, 2)
    assert kept.taken == 1300 + 2300
    kept.release(asked(1200, 1, 2), 1, 100, 1, 100)
    kept.release(asked(1100, 1, 2), 2, 50, 2, 50)
    assert kept.taken == 0


def test_what_is_taken_comes_to_nothing_again_whatever_is_shared() -> None:
    rng = random.Random(1)
    kept, inside = memory(kv_tokens=40_000, host_tokens=20_000), []
    for number in range(2000):
        arrival = asked(rng.randint(1, 3000), *(rng.randint(1, 2) for _ in range(rng.randint(0, 6))))
        output, choices = rng.randint(1, 200), rng.choice([1, 1, 3])
        before, needs = kept.taken, kept.needs(arrival, output, choices)
        kept.hold(arrival, output, choices)
        assert kept.taken == before + needs
        assert choices * output <= needs <= arrival.prompt_tokens + choices * output
        found, _ = kept.find(arrival)
        assert 0 <= found < arrival.prompt_tokens
        inside.append((arrival, number, output, choices))
        if rng.random() < 0.9:
            kept.computed(arrival, arrival.prompt_tokens)
        while len(inside) > rng.randint(0, 8):
            one = inside.pop(rng.randrange(len(inside)))
            kept.release(*one, said=one[2])
        idle = [tokens for block, tokens in kept._known.items() if block not in kept._held]
        assert kept._idle == sum(idle) <= max(0, 40_000 - kept.taken)
        assert kept._on_host == sum(kept._host.values()) <= 20_000
    for one in inside:
        kept.release(*one, said=0)
    assert kept.taken == 0


def test_a_beginning_is_found_once_it_is_computed_to_whole_blocks_and_never_all_of_a_prompt() -> None:
    kept = memory()
    assert serve(kept, 1, asked(700, 1, 2)) == (0, 0)
    assert kept.find(asked(2000, 1, 2)) == (700 // 16 * 16, 0)
    assert kept.find(asked(2000, 1, 3)) == (512, 0)
    assert kept.find(asked(2000, 2, 1)) == (0, 0)
    assert kept.find(asked(512, 1)) == (496, 0)
    serve(kept, 2, asked(1400, 1, 2))
    assert kept.find(asked(2000, 1, 2)) == (1024, 0)


def test_a_prompt_that_was_not_computed_is_not_found() -> None:
    kept = memory()
    kept.hold(asked(1024, 1, 2), 10, 1)
    assert kept.find(asked(1024, 1, 2)) == (0, 0)
    kept.release(asked(1024, 1, 2), 1, 10, 1, 0)
    assert kept.find(asked(1024, 1, 2)) == (0, 0)


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    kept = memory(kv_tokens=3000)
    serve(kept, 1, asked(1024, 1, 2))
    serve(kept, 2, asked(1024, 7, 8))
    serve(kept, 3, asked(600, 1))  # uses the first block again, and leaves 98 tokens of its own
    kept.hold(asked(900), 10, 1)
    assert kept.find(asked(2000, 1, 2)) == (512, 0)
    assert kept.find(asked(2000, 7, 8)) == (1024, 0)
    kept.hold(asked(600), 10, 1)
    assert kept.find(asked(2000, 7, 8)) == (512, 0)
    assert kept.find(asked(2000, 1, 2)) == (512, 0)


def test_what_has_to_leave_the_device_is_loaded_from_the_host() -> None:
    kept = memory(kv_tokens=2048, host_tokens=2048)
    serve(kept, 1, asked(1024, 1, 2))
    kept.hold(asked(2000), 10, 1)
    assert kept.find(asked(2000, 1, 2)) == (1024, 1024)
    kept.release(asked(2000), 2, 10, 1, 10)
    for number in range(3, 8):
        serve(kept, number, asked(1024, number, number))
    assert kept.find(asked(2000, 1, 2)) == (0, 0)


def test_prompts_that_begin_alike_for_others_only_are_no_cost() -> None:
    kept = memory()
    for number in range(100):
        serve(kept, number, asked(1000))
    assert kept.cached == 0


def test_the_next_turn_of_a_session_finds_the_answer_too() -> None:
    kept = memory()
    turn = Arrival(0.0, 1000, 100, prefix=(1, 2, 3), turn=1)
    kept.hold(turn, 100, 1)
    kept.computed(turn, 1000)
    assert kept.find(asked(3000, 1, 2, 3)) == (1000 // 16 * 16, 0)
    kept.computed(turn, 1100)
    kept.release(turn, 1, 100, 1, 100)
    assert kept.find(asked(3000, 1, 2, 3)) == (1100 // 16 * 16, 0)
    assert kept.taken == 0
    assert kept.cached == kept._idle == 1100
