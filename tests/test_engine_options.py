"""Every option of an engine can be said on the command line and in the file, and reaches the engine either way."""

import json
from dataclasses import fields, replace
from inspect import BoundArguments
from pathlib import Path
from typing import Any, Literal

import pytest
from cyclopts import ValidationError

from headgate.__main__ import app
from headgate.cli.engine import DEFAULTS, FLAGS, EngineFlags
from headgate.config.engine import BUNDLED_NAME, BatchConfig, EngineConfig, KvType
from headgate.config.file import parse
from headgate.config.forms.flags import words_of
from headgate.config.gateway import GatewayConfig
from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.runner.profile_file import find
from headgate.model.errors import StartupError
from headgate.sim.fleet import fleet_from
from headgate.wiring.fleet import process_spec

OTHER: dict[Any, Any] = {
    bool: True,
    int: 96,
    float: 0.0455,
    str: "a",
    Path: Path("a.gguf"),
    tuple[Path, ...]: (Path("b.gguf"), Path("c.gguf")),
    tuple[str, ...]: ("Be.", "Be kind."),
    KvType: "f16",
    Literal["cuda", "cpu"]: "cpu",
}
EVERYTHING = EngineConfig(**{flag.field: OTHER[flag.type] for flag in FLAGS})
"""Every setting with a value that is not its default."""
IN_THE_FILE = f"embedded: {json.dumps({flag.field: getattr(EVERYTHING, flag.field) for flag in FLAGS}, default=str)}\n"


def told(words: list[str], command: str = "engine") -> EngineFlags:
    """What an engine makes of its command line."""
    bound: BoundArguments
    _, bound, *_ = app.parse_args([command, *words], exit_on_error=False, print_error=False)
    found: EngineFlags = bound.arguments.get("flags", DEFAULTS)
    return found


def test_no_option_is_left_as_it_is_in_what_is_tried_here() -> None:
    default = EngineConfig()
    assert [one.name for one in fields(default) if getattr(EVERYTHING, one.name) == getattr(default, one.name)] == []


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_every_option_reaches_the_engine(command: str) -> None:
    assert told(words_of(EVERYTHING), command).config() == EVERYTHING


def test_the_file_says_all_that_the_command_line_can() -> None:
    assert parse(IN_THE_FILE, "x.yaml").embedded == EVERYTHING


def test_nothing_said_is_nothing_changed() -> None:
    assert words_of(EngineConfig()) == []
    assert DEFAULTS.given() == {}
    assert DEFAULTS.config() == EngineConfig()


def test_zero_is_said_too() -> None:
    assert told(["--draft-batch", "0", "--host-tokens", "0"]).given() == {"draft_batch": 0, "host_tokens": 0}


def test_flags_that_people_use_keep_their_spelling() -> None:
    used = (
        "--model --device --model-name --lora --chat-template --system-prompt --max-tokens --truncate --slots "
        "--context --kv-tokens --host-tokens --threads --gap-target-ms --step-limit-ms --longest-shared --in-order "
        "--draft-batch"
    )
    assert set(used.split()) <= {flag.spelled for flag in FLAGS}


def test_every_flag_has_help_that_names_its_default() -> None:
    for flag in FLAGS:
        assert flag.help.endswith(".")
        assert flag.type is bool or flag.default == () or "Default: " in flag.help
        assert "None" not in flag.help


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slots", "0"], "must be from 1 to 100000"),
        (["--step-limit-ms", "0"], "must be above 0, at most 86400, in seconds"),
        (["--system-prompt", ""], "must be that is not empty"),
    ],
)
def test_bounds_are_those_of_the_file(words: list[str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        told(words)


def test_what_is_not_given_is_the_machines_own() -> None:
    usual = BatchConfig(step_limit_s=7.0, draft_batch=5, queue_limit=3)
    assert EngineConfig(in_order=True).batch(usual) == usual
    assert EngineConfig(draft_batch=0).batch(usual) == replace(usual, draft_batch=0)


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


def test_a_fleet_of_processes_is_told_all_of_it() -> None:
    config = parse(IN_THE_FILE + "fleet: {kind: processes}\n", "x.yaml")
    assert told(list(process_spec(config).flags)).config() == EVERYTHING


def test_emulated_engines_are_told_how_to_batch_and_nothing_that_they_would_refuse() -> None:
    text = "embedded: {longest_shared: 2048, in_order: true, model: a.gguf, slots: 3}\n"
    text += "fleet: {kind: processes, emulate: {profile: h100-llama3-8b}}"
    flags = told(list(process_spec(parse(text, "x.yaml")).flags))
    assert flags.given() == {"longest_shared": 2048, "in_order": True}


def test_an_emulated_engine_does_as_it_is_told() -> None:
    profile, words = find("h100-llama3-8b"), ["--longest-shared", "2048", "--step-limit-ms", "70", "--draft-batch", "4"]
    changes: Any = {"longest_shared": 2048, "step_limit_s": 0.07}
    for config, changed in (
        (emulated_config(profile), {}),
        (replace(emulated_config(profile), **told(words).given()), changes),
    ):
        pieces: Any = {"clock": lambda: 0.0, "sink": None, "ids": None, "rng": None}
        made, _ = emulated_engine(profile, config, **pieces, dilation=2.0)
        assert made.batcher.config == replace(profile.batch_config(2.0), **changed)


def test_a_simulated_engine_does_as_the_file_says() -> None:
    profile = find("h100-llama3-8b")
    made: Any = fleet_from(parse("embedded: {longest_shared: 2048, step_limit_s: 0.07}", "x.yaml"), profile).members[0]
    assert made.batch == replace(profile.batch_config(), longest_shared=2048, step_limit_s=0.07)
    assert fleet_from(GatewayConfig(), profile).members[0].batch is None


def test_a_model_is_served_under_its_name_or_its_files_or_that_of_the_bundled_one() -> None:
    assert EngineConfig(model=Path("models/tiny.gguf"), model_name="small").served_name == "small"
    assert EngineConfig(model=Path("models/tiny.gguf")).served_name == "tiny"
    assert EngineConfig().served_name == BUNDLED_NAME
