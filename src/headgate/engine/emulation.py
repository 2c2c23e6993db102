"""Builds an engine that computes nothing: the real Batcher, ledger and API around a runner that only takes the modelled
time."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from headgate.config.engine import EngineConfig
from headgate.engine.engine import Engine, Sink
from headgate.engine.intake import Intake
from headgate.engine.openai import ChatBody, TextBody
from headgate.engine.runner.emulated_runner import EmulatedRunner
from headgate.engine.runner.emulated_tokenizer import EmulatedTokenizer
from headgate.machine.profile import Profile
from headgate.model.clock import Clock
from headgate.model.lane import Lane


def emulated_config(profile: Profile) -> EngineConfig:
    """Returns the profile's settings. The caller may replace any of them with `dataclasses.replace`, except the
    profile's sizes."""
    return EngineConfig(
        model_name=f"emulated-{profile.name}",
        slots=profile.slots,
        context=profile.context,
        kv_tokens=profile.kv_tokens,
        host_tokens=profile.host_tokens,
    )


def emulated_engine(
    profile: Profile,
    config: EngineConfig,
    *,
    clock: Clock,
    sink: Sink,
    ids: Iterator[int],
    rng: random.Random,
    dilation: float = 1.0,
) -> tuple[Engine, Intake]:
    """Returns an engine and intake for `EngineServer.adopt`. `dilation`: real seconds per second of the profile."""
    tokenizer = EmulatedTokenizer()
    usual = profile.batch_config(dilation)
    # Without text no draft could be right.
    batch = replace(config.batch(usual), draft_batch=usual.draft_batch)
    batcher = profile.batcher(batch, dilation)
    runner = EmulatedRunner(profile, tokenizer.words, rng=rng, dilation=dilation, clock=clock)
    engine = EmulatedEngine(runner, tokenizer, batcher, clock, sink)
    return engine, DilatedIntake(config, tokenizer, batcher.ledger.longest, ids, rng, dilation=dilation)


class EmulatedEngine(Engine):
    """An engine that stops without waiting for a long modelled step to end."""

    def stop(self) -> None:
        cast(EmulatedRunner, self.runner).halt()
        super().stop()


@dataclass(frozen=True)
class DilatedIntake(Intake):
    """Stretches a lane's targets with the dilation, so that the Batcher chooses as it would at full speed. Targets in
    the request itself are in the client's real seconds, and stay."""

    dilation: float = 1.0

    def lane(self, body: ChatBody | TextBody, prompt_tokens: int) -> Lane:
        lane = super().lane(body, prompt_tokens)
        if self.dilation == 1.0:
            return lane
        return replace(
            lane, ttft_target_s=lane.ttft_target_s * self.dilation, gap_target_s=lane.gap_target_s * self.dilation
        )
