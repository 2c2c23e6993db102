import pytest

from headgate.sim.longest import MOST, Longest
from headgate.sim.world import World


def test_things_happen_in_order_of_time_and_then_of_asking() -> None:
    world, seen = World(), list[tuple[float, str]]()

    def note(what: str) -> None:
        seen.append((world.now, what))
        if what == "b":
            world.at(world.now, note, "at once, but after all that was due already")
            world.at(0.5, note, "of the past")

    for when, what in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (1.0, "last of its moment")):
        world.at(when, note, what)
    world.run()
    assert [what for _, what in seen] == [
        "a",
        "b",
        "last of its moment",
        "at once, but after all that was due already",
        "of the past",
        "c",
    ]
    assert [when for when, _ in seen] == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
    assert world.events == 6


def test_nothing_happens_after_it_was_stopped() -> None:
    world, seen = World(), list[str]()
    world.at(1.0, lambda _: world.stop())
    world.at(2.0, seen.append, "late")
    world.run()
    assert world.now == 1.0
    assert not seen


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_step_since_a_moment_is_what_looking_at_all_of_them_would_find(seed: int) -> None:
    import random

    rng, longest, steps = random.Random(seed), Longest(), list[float]()
    for _ in range(rng.randint(1, 300)):
        for _ in range(rng.randint(1, 3)):
            steps.append(round(rng.random(), 1))
            longest.add(len(steps), steps[-1])
        since = rng.randint(0, len(steps))
        assert longest.since(since) == max(steps[since:], default=0.0)


def test_ever_shorter_steps_are_forgotten_at_last() -> None:
    longest = Longest()
    for number in range(10 * MOST):
        longest.add(number, 1.0 / (number + 1))
    assert len(longest._numbers) <= MOST
    assert longest.since(10 * MOST - 2) == 1.0 / (10 * MOST)
