"""The forms in which a config's values are written: times, environment variables, secrets in files, and the schema that
editors take."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headgate.config.file import hints_of, load, parse
from headgate.config.forms.durations import seconds_of
from headgate.config.forms.environment import Unset, expanded
from headgate.config.forms.schema import documents_of, schema
from headgate.config.forms.secrets import MOST_BYTES, is_secret
from headgate.config.gateway import GatewayConfig, ObserveConfig, Tenant
from headgate.config.nodes import _Loader
from headgate.model.errors import UsageError
from headgate.model.lane import Lane
from tests.keys import hash_key
from tests.test_config_file import TEXT, problems, sections, switched_on, without

VALIDATOR = Draft202012Validator(schema())


def as_json(text: str) -> Any:
    """The YAML of a config as an editor sees it: plain values of YAML 1.2."""

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    return yaml.load(text, Loader)


# -- times --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("2 d", 172_800), (" 3S ", 3), ("0", 0)],
)
def test_times_are_read_as_people_write_them(text: str, value: float) -> None:
    assert seconds_of(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-5m", "5m3s", "1e3", "٣s", "5w", "0x5"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds_of(text) is None


def test_every_setting_in_seconds_takes_a_time() -> None:
    config = parse("timeouts: {stall_s: 5m, connect_s: 250ms, idle_s: 90}\nfleet: {kind: ray, start_s: 1h}", "x.yaml")
    assert (config.timeouts.stall_s, config.timeouts.connect_s, config.timeouts.idle_s) == (300.0, 0.25, 90.0)
    assert config.fleet.start_s == 3600.0
    for cls in set(sections(GatewayConfig)):
        for one in fields(cls):
            checks = [arg for arg in _flat(hints_of(cls)[one.name]) if hasattr(arg, "duration")]
            if one.name.endswith("_s") and one.name != "tokens_per_s":
                assert [check.duration for check in checks] == [True], (cls, one.name)


def _flat(hint: Any) -> list[Any]:
    return [hint] if not get_args(hint) else [part for arg in get_args(hint) for part in _flat(arg)]


def test_neither_true_nor_nothing_is_a_time() -> None:
    assert problems("timeouts: {stall_s: true}")
    assert problems("timeouts: {stall_s: null}")
    assert problems("timeouts: {stall_s: 0s}")
    assert problems("timeouts: {stall_s: [5m]}")


# -- environment variables --------------------------------------------------------------------------------


def test_variables_stand_for_values_of_any_type() -> None:
    environ = {"PORT": "9000", "URL": "http://a:1", "EMPTY": ""}
    text = 'listen:\n  port: ${PORT}\n  host: "${HOST:-127.0.0.2}"\nreplicas:\n- url: ${URL}\n  weight: ${W:-2}'
    config = parse(text, "x.yaml", environ)
    assert (config.listen.port, config.listen.host) == (9000, "127.0.0.2")
    assert (config.replicas[0].url, config.replicas[0].weight) == ("http://a:1", 2.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", "a"), ("${A}", "1"), ("x${A}y${A}", "x1y1"), ("${E:-d}", "d"), ("${E}", ""), ("${N:-}", ""), ("$A", "$A"),
        ("$${A}", "${A}"), ("${A:-d}", "1"), ("${N:-http://h:1}", "http://h:1"), ("$$", "$$"),
    ],
)  # fmt: skip
def test_references(text: str, value: str) -> None:
    assert expanded(text, {"A": "1", "E": ""}) == value


@pytest.mark.parametrize("text", ["${N}", "${", "${A", "${1}", "${}", "x ${A-d}"])
def test_a_reference_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(Unset):
        expanded(text, {"A": "1"})


@given(st.text(max_size=40))
def test_text_without_a_reference_stays_as_it_is(text: str) -> None:
    if "${" not in text:
        assert expanded(text, {}) == text


def test_a_missing_variable_is_named_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"^x\.yaml:2: \$\{NONE\}: the environment has no NONE; set it, or write "):
        parse("listen:\n  port: ${NONE}", "x.yaml", {})


def test_what_a_variable_holds_is_never_shown() -> None:
    with pytest.raises(UsageError) as caught:
        parse("listen: {port: '${SECRET}'}", "x.yaml", {"SECRET": "sk-1"})
    assert str(caught.value) == (
        "x.yaml:1: listen.port: expected a whole number from 0 to 65535, got what '${SECRET}' stands for"
    )


def test_a_text_that_came_over_the_network_reads_neither_variables_nor_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("redis://h:1")
    assert "got '${HOME}'" in problems("listen: {host: '${HOME}'}")[0]
    assert "unknown key" in problems(f"shared: {{redis_file: {tmp_path}/secret}}")[0]


# -- secrets in files --------------------------------------------------------------------------------


def loaded(tmp_path: Path, text: str) -> GatewayConfig:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load(path, {})


def test_secrets_come_from_files(tmp_path: Path) -> None:
    for name, text in {
        "redis": "redis://:pw@h:1/0\n", "hook": " https://example.com/hook \n", "header": "Bearer x",
        "keys": f"{hash_key('a')}\n\n{hash_key('b')}\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    config = loaded(
        tmp_path,
        f"shared: {{redis_file: {tmp_path}/redis}}\n"
        f"observe: {{webhook_file: {tmp_path}/hook, otlp_headers_file: {{authorization: {tmp_path}/header}}}}\n"
        f"tenants: {{acme: {{key_sha256_file: {tmp_path}/keys}}}}\n"
        f"replicas: [{{url: http://a, headers_file: {{x-key: {tmp_path}/header}}}}]\n",
    )
    assert config.shared is not None
    assert config.shared.redis == "redis://:pw@h:1/0"
    assert config.observe.webhook == "https://example.com/hook"
    assert config.observe.otlp_headers == {"authorization": "Bearer x"}
    assert config.tenants[0].key_sha256 == (hash_key("a"), hash_key("b"))
    assert config.replicas[0].headers == {"x-key": "Bearer x"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"sk-secret", "got something else"),
        (b"redis://h:1\nredis://h:2", "got something else"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"x" * (MOST_BYTES + 1), "is it the right file?"),
    ],
)
def test_a_file_that_can_not_be_used_is_named_and_not_shown(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, f"shared: {{redis_file: {tmp_path}/secret}}")
    assert says in str(caught.value)
    assert "shared.redis_file" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_wrong_hashes_in_a_file_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hash_key('a')}\nsk-plain\n")
    with pytest.raises(UsageError, match=r"in each line of .*keys, got something else; `headgate key --hash` prints"):
        loaded(tmp_path, f"admin_keys_file: {tmp_path}/keys")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shared: {redis: redis://h:1, redis_file: x}", "give redis or redis_file, not both"),
        ("shared: {redis_file: [x]}", "expected a path, got a list"),
        ("listen: {host_file: x}", "unknown key"),
        ("observe: {otlp_headers_file: x}", "expected a mapping, got a single value"),
    ],
)
def test_mistakes_with_files(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        loaded(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.yaml:1: admin_keys_file: can't read absent: No such file or directory"):
        loaded(tmp_path, "admin_keys_file: absent")


def test_only_secrets_have_files() -> None:
    secret = {
        (cls.__name__, one.name)
        for cls in sections(GatewayConfig)
        for one in fields(cls)
        if is_secret(hints_of(cls)[one.name])
    }
    assert secret == {
        ("SharedConfig", "redis"), ("ObserveConfig", "webhook"), ("ObserveConfig", "otlp_headers"),
        ("Replica", "headers"), ("Tenant", "key_sha256"), ("GatewayConfig", "admin_keys"),
        ("AccessConfig", "headers"),
    }  # fmt: skip


# -- the schema --------------------------------------------------------------------------------


def wrong(text: str) -> bool:
    return any(VALIDATOR.iter_errors(as_json(text)))


def test_the_schema_is_one_and_the_example_fits() -> None:
    Draft202012Validator.check_schema(schema())
    assert not wrong(TEXT)
    assert not wrong(without("replicas", switched_on(TEXT)))


@pytest.mark.parametrize(
    "text",
    [
        "lisen: {}", "listen: {port: x}", "listen: {port: 70000}", "timeouts: {stall_s: 5q}", "timeouts: {stall_s: 0}",
        "lanes: {mine: {priority: 1}}", "lanes: {fast: {wait: 1}}", "replicas: [{}]", "replicas: {}",
        "tenants: {a: {key: x}}",
        "tenants: {a: {key_sha256: [sk-plain]}}", "tiers: {gold: {}}", "routing: {weights: {loud: 1}}",
        "listen: {tls: {cert: a}}",
        "routing: {algorithm: random}", "output: {tasks: {chat: {cap: 1}}}", "anonymous: {key_sha256: []}",
        "embedded: {slots: 0}",
    ],
)  # fmt: skip
def test_what_the_reader_refuses_the_schema_refuses(text: str) -> None:
    assert problems(text)
    assert wrong(text)


@pytest.mark.parametrize(
    "text",
    [
        "{}", "timeouts: {stall_s: 5m}", "lanes: {fast: {weight: 2}}", "tiers: {free: {weight: 2}}",
        "lanes: {mine: {priority: 1, ttft_target_s: 1, gap_target_s: 200ms, weight: 1}}", "embedded: {}",
        "replicas: [{url: http://a}]", "routing: {weights: {load: 2}}", "output: {tasks: {mine: {max_tokens: 5}}}",
        "models: [{name: m, versions: [{name: v, model: a, weight: 1}]}]", "retry: {attempts: 2}",
        "observe: {webhook: null}",
    ],
)  # fmt: skip
def test_what_the_reader_takes_the_schema_takes(text: str) -> None:
    parse(text, "x.yaml")
    assert not wrong(text)


def test_variables_and_secret_files_are_in_it() -> None:
    assert not wrong("listen: {port: '${PORT}'}\nshared: {redis_file: /run/secrets/redis}\nadmin_keys_file: x")
    assert not wrong("replicas: [{url: '${URL}', headers_file: {authorization: /run/secrets/key}}]")


def test_every_setting_is_explained_in_it() -> None:
    for cls in (Lane, Tenant, ObserveConfig, GatewayConfig):
        assert documents_of(cls).keys() >= {one.name for one in fields(cls)} - {"name", "weight"}, cls
    properties = schema()["properties"]
    assert properties.keys() - {"admin_keys_file"} == {one.name for one in fields(GatewayConfig)}
    assert all(one["description"] for one in properties.values())
    assert schema()["$defs"]["ObserveConfig"]["properties"]["availability"]["default"] == 0.999
