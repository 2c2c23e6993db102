import random

import pytest

from headgate.policy.batching.estimate import StepShape, StepTime

TRUE = (0.004, 0.007, 0.003, 0.00002)


def seconds(shape: StepShape) -> float:
    return sum(c * f for c, f in zip(TRUE, shape.features, strict=True))


def a_shape(rng: random.Random, *, prefill: bool = True) -> StepShape:
    decodes = rng.randrange(0 if prefill else 1, 9)
    tokens = rng.randrange(8, 200) if prefill else 0
    return StepShape(tokens, decodes, (tokens + decodes) * rng.randrange(10, 2000))


def test_it_learns_the_machine_within_a_few_dozen_noisy_steps() -> None:
    rng, model = random.Random(1), StepTime()
    for index in range(64):
        shape = a_shape(rng, prefill=index % 3 == 0)
        model.learn(shape, seconds(shape) * rng.uniform(0.95, 1.05))
    for _ in range(50):
        shape = a_shape(rng, prefill=rng.random() < 0.5)
        assert model.predict(shape) == pytest.approx(seconds(shape), rel=0.1)
    assert 1.0 < model.caution < 1.15


def test_an_hour_of_decoding_does_not_wash_out_what_is_known_of_prefill() -> None:
    rng, model = random.Random(2), StepTime()
    for index in range(20_000):
        shape = a_shape(rng, prefill=index < 60)
        model.learn(shape, seconds(shape) * rng.uniform(0.95, 1.05))
    shape = StepShape(100, 4, 60_000)
    assert model.predict(shape) == pytest.approx(seconds(shape), rel=0.15)


def test_one_step_in_fifty_that_takes_ten_times_as_long_does_not_fool_it() -> None:
    rng, model = random.Random(3), StepTime()
    for index in range(2000):
        shape = a_shape(rng, prefill=rng.random() < 0.5)
        model.learn(shape, seconds(shape) * (10 if index % 50 == 49 else 1))
    shape = StepShape(64, 4, 20_000)
    assert model.predict(shape) == pytest.approx(seconds(shape), rel=0.3)


def test_it_follows_a_machine_that_becomes_twice_as_slow() -> None:
    rng, model = random.Random(4), StepTime()
    for index in range(3000):
        shape = a_shape(rng, prefill=rng.random() < 0.5)
        model.learn(shape, seconds(shape) * (2 if index > 1000 else 1))
    shape = StepShape(64, 4, 20_000)
    assert model.predict(shape) == pytest.approx(2 * seconds(shape), rel=0.1)


def test_the_largest_prefill_is_the_largest_that_is_predicted_to_fit() -> None:
    model = StepTime(TRUE)
    size = model.largest_prefill(0.2, decodes=2, context=1000, start=500, most=512)
    fits, does_not = (model.predict(StepShape(n, 2, 1000 + n * (500 + n))) for n in (size, size + 1))
    assert fits <= 0.2 < does_not
    assert model.largest_prefill(0.0, 2, 1000, 500, 512) == 0
    assert model.largest_prefill(1e9, 2, 1000, 500, 512) == 512


def test_no_coefficient_is_ever_negative() -> None:
    rng, model = random.Random(5), StepTime()
    for _ in range(500):
        model.learn(a_shape(rng), rng.uniform(0.001, 1.0))
        assert all(value >= 0 for value in model.coefficients)


def test_caution_is_what_one_step_in_twenty_takes_longer_than_predicted() -> None:
    rng, model = random.Random(5), StepTime(TRUE)
    assert model.caution == 1.2  # nothing is known yet
    for _ in range(300):
        shape = a_shape(rng)
        model.learn(shape, seconds(shape) * (1.6 if rng.random() < 0.1 else 1.0))
    assert 1.4 < model.caution < 1.7
    for _ in range(300):
        shape = a_shape(rng)
        model.learn(shape, seconds(shape) * rng.uniform(0.99, 1.01))
    assert model.caution < 1.1
    for _ in range(100):
        shape = a_shape(rng)
        model.learn(shape, 9.0 * model.predict(shape))
    assert model.caution == 3.0
