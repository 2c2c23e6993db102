"""Every option of an engine can be said on the command line and in the file, and reaches the engine either way."""

from dataclasses import fields, replace
from inspect import BoundArguments
from pathlib import Path
from typing import Any

import pytest

from headgate.__main__ import DEFAULTS, EngineFlags, app
from headgate.config.engine import EngineConfig
from headgate.config.file import parse
from headgate.config.gateway import EmbeddedConfig, GatewayConfig
from headgate.engine.runner.profile_file import find
from headgate.model.errors import StartupError
from headgate.sim.fleet import fleet_from
from headgate.wiring.fleet import engine_flags, process_spec

EVERYTHING = EngineFlags(
    model=Path("a.gguf"), model_name="a", lora=(Path("b.gguf"),), chat_template=Path("c.jinja"), system_prompt=("Be.",),
    max_tokens=7, truncate=True, slots=3, context=64, kv_tokens=96, host_tokens=32, threads=1, gap_target_ms=45.5,
    step_limit_ms=70, longest_shared=2048, in_order=True, draft_batch=0,
)  # fmt: skip
IN_THE_FILE = """
embedded:
  model: a.gguf
  model_name: a
  loras: [b.gguf]
  chat_template: c.jinja
  system_prompts: [Be.]
  default_max_tokens: 7
  truncate: true
  slots: 3
  context: 64
  kv_tokens: 96
  host_tokens: 32
  threads: 1
  gap_target_s: 0.0455
  step_limit_s: 0.07
  longest_shared: 2048
  in_order: true
  draft_batch: 0
"""


def told(flags: list[str]) -> EngineFlags:
    """What an engine makes of its command line."""
    bound: BoundArguments
    _, bound, *_ = app.parse_args(["engine", *flags], exit_on_error=False, print_error=False)
    found: EngineFlags = bound.arguments.get("flags", DEFAULTS)
    return found


def config_of(flags: EngineFlags) -> EngineConfig:
    return flags.config()


def test_no_option_is_left_as_it_is_in_what_is_tried_here() -> None:
    same = [one.name for one in fields(EngineFlags) if getattr(EVERYTHING, one.name) == getattr(DEFAULTS, one.name)]
    assert same == []


def test_every_option_of_serve_reaches_the_engine_that_it_runs() -> None:
    assert config_of(told(engine_flags(EVERYTHING.embedded()))) == config_of(EVERYTHING)


def test_the_file_says_all_that_the_command_line_can() -> None:
    assert parse(IN_THE_FILE, "x.yaml").embedded == EVERYTHING.embedded()


@pytest.mark.model
def test_nothing_said_is_nothing_changed(model_path: Path) -> None:
    assert replace(told(engine_flags(EmbeddedConfig())).config(), threads=0) == replace(DEFAULTS.config(), threads=0)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("longest_shared: 0", "embedded.longest_shared: expected a whole number from 1"),
        ("draft_batch: -1", "embedded.draft_batch: expected a whole number from 0"),
        ("step_limit_s: 0", "embedded.step_limit_s: expected a number above 0"),
        ("gap_target_s: -1", "embedded.gap_target_s: expected a number above 0"),
        ("in_order: 1", "embedded.in_order: expected true or false"),
    ],
)
def test_what_is_no_such_value_is_named(setting: str, expected: str) -> None:
    with pytest.raises(StartupError) as raised:
        parse(f"embedded: {{{setting}}}", "x.yaml")
    assert expected in str(raised.value)


def spoken(config: GatewayConfig) -> EngineFlags:
    spec = process_spec(config)
    return told(list(spec.flags))


def test_a_fleet_of_processes_is_told_how_to_batch() -> None:
    config = parse(IN_THE_FILE + "fleet: {kind: processes}\n", "x.yaml")
    assert config_of(spoken(config)) == config_of(EVERYTHING)


def test_emulated_engines_are_told_how_to_batch_and_nothing_that_they_would_refuse() -> None:
    text = "embedded: {longest_shared: 2048, in_order: true}\n"
    text += "fleet: {kind: processes, emulate: {profile: h100-llama3-8b}}"
    flags = spoken(parse(text, "x.yaml"))
    assert (flags.longest_shared, flags.in_order, flags.model) == (2048, True, None)
    assert flags.step_limit_ms is None  # the profile's own
    assert flags.draft_batch is None


def test_an_emulated_engine_does_as_it_is_told() -> None:
    profile = find("h100-llama3-8b")
    usual = DEFAULTS.emulated(profile, 2.0)
    assert (usual.batch, usual.gap_target_s) == (profile.batch_config(2.0), None)
    told_so = EngineFlags(longest_shared=2048, step_limit_ms=70, gap_target_ms=45, in_order=True, draft_batch=4)
    made = told_so.emulated(profile, 2.0)
    assert made.batch == replace(profile.batch_config(2.0), longest_shared=2048, step_limit_s=0.07)
    assert (made.gap_target_s, made.in_order) == (0.045, True)


def test_a_simulated_engine_does_as_the_file_says() -> None:
    profile = find("h100-llama3-8b")
    made: Any = fleet_from(parse("embedded: {longest_shared: 2048, step_limit_s: 0.07}", "x.yaml"), profile).members[0]
    assert made.batch == replace(profile.batch_config(), longest_shared=2048, step_limit_s=0.07)
    assert fleet_from(GatewayConfig(), profile).members[0].batch is None
