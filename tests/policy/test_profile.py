"""What a step takes by a profile, and whether a log of steps gives the profile back."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headgate.machine.profile import PROFILES, Noise, Profile, Residuals, StepCost
from headgate.machine.profile_fit import MOST, RUN, RUNS, StepLine, TooFewSteps, fit
from headgate.machine.step_features import StepFeatures, shape
from headgate.model.step import Copy, Drop, Restore, Row, Save, Step, Trim
from headgate.policy.batching.estimate import shape_of
from tests.scripted import ScriptedRunner, batcher, sequence

H100 = PROFILES["h100-llama3-8b"]
CPU = replace(
    H100,
    name="cpu",
    cost=StepCost(fixed=0.004, per_prefill=0.004, per_decode=0.0035, per_context=2e-6, per_pair=5e-7),
    bytes_per_token=12_000,
    saves_overlap=False,
)


# -- shapes -------------------------------------------------------------------------------------------------


def test_a_shape_tells_prefill_from_decoding_and_adds_up_what_is_moved() -> None:
    prefilling = sequence(1, range(100))
    decoding = sequence(2, range(40))
    decoding.tokens.append(7)
    moves = (Trim(3, 0), Save(3, 9, 50), Restore(9, 4, 30), Copy(1, 2, 16), Drop(9))
    made = shape(Step(moves, (Row(prefilling, 0, 16, 20, False), Row(decoding, 1, 40, 1, True))))
    assert made == StepFeatures(
        prefill=20, decodes=1, context=41, pairs=2 * 16 * 20 + 20 * 20, saved=50, loaded=30, copied=16
    )
    assert made.tokens == 21


def test_a_shape_is_the_same_after_its_step_as_before() -> None:
    """Sequences move on in a step; a log is written after it."""
    batch, runner = batcher(), ScriptedRunner()
    seen = []
    for number in range(6):
        assert batch.add(sequence(number, range(number, number + 30 + 7 * number), max_output=6)) is None
    now = 0.0
    while (step := batch.plan(now)) is not None:
        before, by_state = shape(step), shape_of(step)
        assert (before.prefill, before.decodes) == (by_state.prefill, by_state.decodes)
        now += 0.1
        batch.done(step, runner.run(step), frozenset(), now, 0.1)
        assert shape(step) == before
        seen.append(before)
    assert any(one.prefill and one.decodes for one in seen)
    assert any(one.decodes and not one.prefill for one in seen)


def test_drafted_tokens_are_computed_beside_their_sequence() -> None:
    decoding = sequence(2, range(40))
    decoding.tokens.append(7)
    made = shape(Step((), (Row(decoding, 1, 40, 1, True, (5, 6, 7)),)))
    assert (made.prefill, made.decodes, made.context, made.pairs) == (3, 1, 44, 0)


# -- times ----------------------------------------------------------------------------------------------------


def test_a_gpus_step_is_the_published_formula() -> None:
    """FIELD's terms for an H100, in ms, times 1.2."""
    made = StepFeatures(prefill=400, decodes=50, context=60_000, pairs=2 * 1000 * 400 + 400**2)
    ms = 1.0 + 1.2 + 0.0198 * 450 + 0.0033 * 450 + 4.4e-5 * 60_000 + 4.0e-7 * made.pairs
    assert H100.step_s(made) == pytest.approx(1.2 * ms / 1e3, rel=0.001)
    few = StepFeatures(decodes=50, context=60_000)
    ms = 1.0 + 1.2 + 5.38 + 0.0033 * 50 + 4.4e-5 * 60_000
    assert H100.step_s(few) == pytest.approx(1.2 * ms / 1e3)


@pytest.mark.parametrize(
    ("name", "alone_ms"), [("a100-llama3-8b", 14.7), ("h100-llama3-8b", 9.1), ("h200-llama3-8b", 7.5)]
)
def test_a_stream_alone_is_paced_by_reading_the_weights(name: str, alone_ms: float) -> None:
    assert PROFILES[name].step_s(StepFeatures(decodes=1, context=500)) == pytest.approx(alone_ms / 1e3, rel=0.02)


def moving(plain: StepFeatures, *, saved: int = 0, loaded: int = 0) -> StepFeatures:
    return StepFeatures(
        prefill=plain.prefill,
        decodes=plain.decodes,
        context=plain.context,
        pairs=plain.pairs,
        saved=saved,
        loaded=loaded,
    )


def test_a_step_without_tokens_costs_only_its_moves() -> None:
    assert H100.step_s(StepFeatures()) == 0.0
    gigabyte = StepFeatures(loaded=8192)
    assert H100.step_s(gigabyte) == pytest.approx(2**30 / 25e9)


def test_a_load_is_waited_for_and_a_save_only_where_it_outlasts_the_step() -> None:
    plain = StepFeatures(decodes=10, context=10_000)
    computing = H100.step_s(plain)
    assert H100.step_s(moving(plain, loaded=1000)) == pytest.approx(computing + 131_072_000 / 25e9)
    assert H100.step_s(moving(plain, saved=1000)) == pytest.approx(computing)
    assert H100.step_s(moving(plain, saved=100_000)) == pytest.approx(100_000 * 131_072 / 25e9)
    serial = replace(H100, saves_overlap=False)
    assert serial.step_s(moving(plain, saved=1000)) == pytest.approx(computing + 131_072_000 / 25e9)
    assert replace(serial, save_bytes_per_s=None).step_s(moving(plain, saved=1000)) == pytest.approx(computing)


def test_steps_in_a_row_take_what_they_take_one_by_one() -> None:
    first = StepFeatures(decodes=40, context=50_000)
    one_by_one = sum(H100.step_s(first.later(index)) for index in range(100))
    assert H100.steps_s(first, 100) == pytest.approx(one_by_one, rel=1e-6)
    noisy = replace(H100, decode_only=Residuals(1.1, ((1.0, 1.2, 1.1),)))
    assert noisy.steps_s(first, 99) == pytest.approx(1.1 * H100.steps_s(first, 99))
    for chance in (random.Random(3), Noise(random.Random(3))):
        assert noisy.steps_s(first, 99, chance) == pytest.approx(1.1 * H100.steps_s(first, 99), rel=0.03)


def test_noise_keeps_runs_together_and_a_plain_draw_does_not() -> None:
    calm, slow = (1.0,) * 8, (3.0,) * 8
    residuals = Residuals(1.0, (calm, slow))
    noise = Noise(random.Random(1))
    drawn = [noise.ratio(residuals) for _ in range(400)]
    assert all(len(set(drawn[at : at + 8])) == 1 for at in range(0, 400, 8))
    assert set(drawn) == {1.0, 3.0}
    assert Noise(random.Random(1)).ratio(Residuals(1.5)) == 1.5
    profile = replace(H100, decode_only=residuals)
    base, rng = H100.step_s(StepFeatures(decodes=1, context=9)), random.Random(1)
    plain = [round(profile.step_s(StepFeatures(decodes=1, context=9), rng) / base) for _ in range(400)]
    assert any(len(set(plain[at : at + 8])) == 2 for at in range(0, 400, 8))


def test_the_same_seed_gives_the_same_times() -> None:
    profile = replace(H100, with_prefill=Residuals(1.0, ((0.9, 1.3), (1.0, 1.1))))
    made = StepFeatures(prefill=20, pairs=400)
    once, again = Noise(random.Random(4)), Noise(random.Random(4))
    assert [profile.step_s(made, once) for _ in range(20)] == [profile.step_s(made, again) for _ in range(20)]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slots": 0}, "slots"),
        ({"kv_tokens": 3}, "kv_tokens"),
        ({"host_tokens": -1}, "host_tokens"),
        ({"load_bytes_per_s": 0.0}, "bytes per second"),
        ({"cost": StepCost(fixed=-1.0)}, "negative"),
        ({"cost": StepCost(knee=-1)}, "negative"),
        ({"cost": StepCost(by_batch=(1.0, 0.0))}, "by batch"),
        ({"with_prefill": Residuals(1.0, ((0.0, 1.0),))}, "ratios"),
        ({"decode_only": Residuals(1.0, ((),))}, "ratios"),
        ({"decode_only": Residuals(0.0)}, "ratios"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(H100, **wrong)  # type: ignore[arg-type]


# -- the engine that goes with it -------------------------------------------------------------------------------


def test_a_batcher_has_the_profiles_sizes_and_its_times_are_stretched_alike() -> None:
    config = H100.batch_config(dilation=4.0)
    batcher = H100.batcher(config, dilation=4.0)
    assert batcher.ledger.blocks == H100.kv_tokens // 16
    assert batcher.ledger.free_slots == H100.slots
    assert batcher.ledger.longest == 131_072
    assert config.step_limit_s == 4 * H100.batch_config().step_limit_s
    assert config.draft_batch == 0
    fast, slow = H100.batcher(H100.batch_config()).step_time, batcher.step_time
    one = shape_of(Step((), (Row(sequence(1, range(64)), 0, 0, 64, True),)))
    assert slow.predict(one) == pytest.approx(4 * fast.predict(one), rel=1e-3)


# -- fitting --------------------------------------------------------------------------------------------------------


def shapes(rng: random.Random, count: int, *, most_decodes: int = 200) -> Iterator[StepFeatures]:
    for _ in range(count):
        decodes = rng.randrange(most_decodes)
        context = sum(rng.randrange(50, 3000) for _ in range(decodes))
        if decodes == 0 or rng.random() < 0.4:
            chunk, cached = rng.randrange(1, 513), rng.choice((0, 0, 0, 512, 4096))
            pairs = chunk * (2 * cached + chunk)
            yield StepFeatures(prefill=chunk, decodes=decodes, context=context, pairs=pairs)
        else:
            yield StepFeatures(decodes=decodes, context=context)


def lines(profile: Profile, made: Iterator[StepFeatures], noise: Callable[[], float]) -> list[StepLine]:
    return [StepLine(0.0, seconds, seconds, one) for one in made for seconds in [profile.step_s(one) * noise()]]


@pytest.mark.parametrize("profile", [*PROFILES.values(), CPU], ids=lambda profile: profile.name)
def test_a_log_gives_back_the_profile_it_was_made_by(profile: Profile) -> None:
    rng = random.Random(7)
    found = fit(lines(profile, shapes(rng, 4000), lambda: 1.0), profile)
    for one in shapes(rng, 500):
        assert found.step_s(one) == pytest.approx(profile.step_s(one), rel=0.05)
    assert (found.cost.knee == 0) == (profile is CPU)
    assert (found.name, found.slots, found.kv_tokens) == (profile.name, profile.slots, profile.kv_tokens)


@pytest.mark.parametrize("profile", [H100, CPU], ids=lambda profile: profile.name)
def test_noise_goes_into_the_residuals_and_the_tail_comes_out_again(profile: Profile) -> None:
    rng = random.Random(8)
    log = lines(profile, shapes(rng, 6000), lambda: rng.lognormvariate(0.05, 0.25))
    found = fit(log, profile)
    one_by_one, in_runs = random.Random(1), Noise(random.Random(1))
    for with_prefill in (True, False):
        kind = [line for line in log if (line.shape.prefill > 0) == with_prefill]
        real = sorted(line.took_s for line in kind)
        medians = sorted(found.step_s(line.shape) for line in kind)
        assert medians[len(kind) // 2] == pytest.approx(real[len(kind) // 2], rel=0.05)
        for chance in (one_by_one, in_runs):
            drawn = sorted(found.step_s(line.shape, chance) for line in kind)
            assert quantile(drawn, 0.5) == pytest.approx(quantile(real, 0.5), rel=0.05)
            assert quantile(drawn, 0.99) == pytest.approx(quantile(real, 0.99), rel=0.1)


def quantile(ordered: list[float], share: float) -> float:
    return ordered[int(share * len(ordered))]


def test_a_few_stalls_do_not_bend_the_formula_but_are_in_the_tail() -> None:
    rng = random.Random(9)
    log = lines(CPU, shapes(rng, 5000), lambda: 20.0 if rng.random() < 0.01 else 1.0)
    found = fit(log, CPU)
    for one in shapes(rng, 200):
        assert found.step_s(one) == pytest.approx(CPU.step_s(one), rel=0.05)
    flat = [ratio for run in found.decode_only.runs for ratio in run]
    assert sum(ratio > 15 for ratio in flat) / len(flat) == pytest.approx(0.01, abs=0.005)


def test_steps_of_next_to_no_time_do_not_bend_the_formula() -> None:
    """Relative to what they took they are off the most; an emulated engine that catches up makes some."""
    rng = random.Random(9)
    found = fit(lines(H100, shapes(rng, 5000), lambda: 0.01 if rng.random() < 0.03 else 1.0), H100)
    for one in shapes(rng, 200):
        assert found.step_s(one) == pytest.approx(H100.step_s(one), rel=0.05)


def test_arithmetic_in_blocks_is_found_and_only_where_it_was_seen() -> None:
    """On a CPU five sequences may cost hardly more than four: no straight line says that."""
    blocks = replace(CPU, cost=replace(CPU.cost, by_batch=(1.0, 0.9, 1.1, 1.1, 1.0, 0.8, 0.8, 0.75)))
    shapes = [StepFeatures(decodes=1 + at % 8, context=50 * (1 + at % 8)) for at in range(800)]
    shapes += [StepFeatures(prefill=16, decodes=at % 8, context=50 * (at % 8), pairs=256) for at in range(200)]
    lines = [StepLine(float(at), blocks.step_s(one), blocks.step_s(one), one) for at, one in enumerate(shapes)]
    made = fit(lines, of=CPU)
    for one in shapes:
        assert made.step_s(one) == pytest.approx(blocks.step_s(one), rel=0.06)
    assert made.step_s(StepFeatures(decodes=40, context=2000)) > made.step_s(StepFeatures(decodes=8, context=400))


def test_long_prefills_have_a_noise_of_their_own() -> None:
    """A pause of 30 ms doubles a short step and is nothing to a long one."""
    rng = random.Random(11)
    shapes = [StepFeatures(prefill=4 if at % 6 else 80, pairs=16 if at % 6 else 6400) for at in range(1200)]
    shapes += [StepFeatures(decodes=1, context=50) for _ in range(200)]
    paused = [CPU.step_s(one) + (0.03 if rng.random() < 0.2 else 0.0) for one in shapes]
    log = [
        StepLine(float(at), took_s, took_s, one) for at, (took_s, one) in enumerate(zip(paused, shapes, strict=True))
    ]
    found = fit(log, of=CPU)
    short, long = shapes[1], shapes[0]
    assert found.long_s is not None
    assert CPU.step_s(short) * 1.2 < found.long_s < CPU.step_s(long) * 1.2
    for one in (short, long):
        worst = sorted(found.step_s(one, rng) for _ in range(2000))[1980]
        assert worst == pytest.approx(CPU.step_s(one) + 0.03, rel=0.1)


def test_residuals_are_bounded_and_the_same_for_the_same_log() -> None:
    rng = random.Random(10)
    few = list(shapes(rng, 400, most_decodes=8))
    log = lines(CPU, iter(few * 60), lambda: 1.0 + rng.random())
    found = fit(log, CPU)
    assert fit(log, CPU) == found
    for residuals in (found.with_prefill, found.long_prefill, found.decode_only):
        assert len(residuals.runs) <= RUNS
        assert all(len(run) <= RUN for run in residuals.runs)
    assert len(found.decode_only.runs) == RUNS
    assert MOST < 1_000_000


def test_how_fast_kv_moves_is_found_from_the_steps_that_move_it() -> None:
    rng = random.Random(11)
    mover = replace(CPU, load_bytes_per_s=2e9, save_bytes_per_s=1e9, copy_bytes_per_s=None)
    plain = list(shapes(rng, 300, most_decodes=8))
    swaps = [moving(one, saved=rng.randrange(500), loaded=rng.randrange(500)) for one in plain[:80]]
    found = fit(lines(mover, iter(plain + swaps), lambda: 1.0), CPU)
    assert found.load_bytes_per_s == pytest.approx(2e9, rel=0.05)
    assert found.save_bytes_per_s == pytest.approx(1e9, rel=0.05)
    assert found.copy_bytes_per_s is None


def test_too_few_steps_are_refused_and_say_how_many_it_takes() -> None:
    with pytest.raises(TooFewSteps, match="at least 50"):
        fit(lines(CPU, shapes(random.Random(1), 49), lambda: 1.0), CPU)


def test_a_log_of_decoding_alone_has_no_noise_for_prefill() -> None:
    log = lines(CPU, (StepFeatures(decodes=n % 8 + 1, context=100 * n) for n in range(100)), lambda: 1.0)
    found = fit(log, CPU)
    assert found.with_prefill == Residuals()
    assert found.step_s(StepFeatures(decodes=3, context=900)) == pytest.approx(
        CPU.step_s(StepFeatures(decodes=3, context=900))
    )
