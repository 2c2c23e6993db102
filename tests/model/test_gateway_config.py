"""The gateway's settings: defaults as required, every field explained, contradictions named."""

import ast
import inspect
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from headgate.config import gateway as gateway_config
from headgate.config import hints
from headgate.config.bounds import BOUNDS
from headgate.config.contradictions import contradictions, did_you_mean, replica_id
from headgate.config.engine import EngineConfig
from headgate.config.gateway import ANONYMOUS, ClassifyConfig, GatewayConfig, RelayConfig, Tenant
from headgate.config.hints import HeaderValue, KeyHash, Name, ReplicaUrl, Seconds, Share, Text, WebOrigin
from headgate.model.lane import LANES
from headgate.model.replica import Replica

KEYS = ["1" * 64, "2" * 64, "3" * 64]
ACME = Tenant(name="acme", key_sha256=(KEYS[0],))


def allows(hint: Any, value: object) -> bool:
    found: bool = get_args(hint)[1].allows(value)
    return found


def found(**settings: Any) -> list[tuple[str, str]]:
    return list(contradictions(GatewayConfig(**settings)))


def test_defaults_are_the_required_ones_and_do_not_contradict_each_other() -> None:
    config = GatewayConfig()
    assert list(contradictions(config)) == []
    assert config.lanes == tuple(LANES.values())
    assert (config.classify.long_above_tokens, config.classify.fast_below_tokens) == (16_384, 512)
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8000)
    assert (config.relay.events, config.relay.bytes) == (32, 262_144)
    assert (config.limits.header_bytes, config.limits.header_count) == (16_384, 100)
    health = config.health
    assert (health.probe_interval_s, health.deep_interval_s, health.failures, health.successes) == (1, 30, 3, 2)
    assert (config.retry.ratio, config.retry.attempts) == (0.1, 3)
    assert config.routing.algorithm == "balanced"
    assert config.anonymous.allowed
    assert not config.anonymous.trusted


def test_a_revived_replica_can_be_back_within_five_seconds() -> None:
    health = GatewayConfig().health
    assert health.cooldown_s + health.successes * health.probe_interval_s < 5


def test_every_field_has_a_docstring() -> None:
    for node in ast.parse(inspect.getsource(gateway_config)).body:
        if isinstance(node, ast.ClassDef):
            for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
                explained = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(statement, ast.AnnAssign) and node.name != "Check":
                    assert explained, f"{node.name}.{ast.unparse(statement.target)}"


def test_every_config_is_frozen_and_every_bound_is_of_a_field_that_exists() -> None:
    with pytest.raises(AttributeError):
        GatewayConfig().listen = None  # type: ignore[misc, assignment]
    for cls, bounds in BOUNDS.items():
        assert is_dataclass(cls)
        assert set(bounds) <= {one.name for one in fields(cls)}


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Seconds, [0.001, 86_400.0], [0.0, -1.0, 86_401.0]),
        (Share, [0.0, 1.0], [-0.1, 1.1]),
        (Name, ["fast", "a-1_B"], ["", "a b", "-a", "a.b", "é", "a\n", "x" * 65]),
        (Text, ["meta/llama 3:8b", "é"], ["", "a\nb", "\x7f", "\ud800", "x" * 257]),
        (HeaderValue, ["Bearer a b"], ["", " a", "a\r\nx: y", "é", "x" * 4097]),
        (WebOrigin, ["*", "https://a.example:8443"], ["", "null", "https://a.example/", "https://u@a", "ftp://a"]),
        (KeyHash, KEYS, ["", "sk-1", "A" * 64, "1" * 63, hints._HASH_OF_NOTHING, "1" * 64 + "\n"]),
        (
            ReplicaUrl,
            ["http://h:1", "https://h", "http://[::1]:8000/", "http://h:1/v1", "unix:/run/a.sock"],
            [
                *(
                    "",
                    "h:1",
                    "ftp://h",
                    "http://",
                    "http://h:0",
                    "http://h:65536",
                    "http://h:x",
                    "http://[::1",
                    "unix:a",
                ),
                *("http://u:p@h", "http://h/v2", "http://h?", "http://h#", "http://h h", "http://h\n", "http://:80"),
            ],
        ),
    ],
)
def test_bounds_hold(hint: Any, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if not allows(hint, value)] == []
    assert [value for value in bad if allows(hint, value)] == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1:8001", "10.0.0.1:8001"),
        ("https://h/", "h"),
        ("unix:/run/a.sock", "/run/a.sock"),
    ],
)
def test_a_replica_without_an_id_is_called_after_its_address(url: str, expected: str) -> None:
    assert replica_id(url) == expected


def test_an_unknown_word_meets_the_closest_or_what_there_is() -> None:
    assert did_you_mean("fsat", ["fast", "slow"]) == "did you mean fast?"
    assert did_you_mean("zzz", ["fast", "slow"]) == "there is fast, slow"
    assert did_you_mean("zzz", []) == "there is none"


def test_a_lane_nobody_has_is_named_with_who_asks_for_it() -> None:
    replica = Replica(id="a", url="http://a", lanes=frozenset({"fast", "fsat"}))
    tenant = replace(ACME, lanes=frozenset({"slow", "quick"}), default_lane="slwo")
    assert found(
        replicas=(replica,), tenants=(tenant,), anonymous=replace(ANONYMOUS, default_lane="fast", lanes=frozenset())
    ) == [
        ("tenants.acme.default_lane", "slwo is not among the lanes it may use"),
        ("replicas[0].lanes", "no lane is called fsat; did you mean fast?"),
        ("tenants.acme.lanes", "no lane is called quick; there is fast, slow, long, batch"),
        ("tenants.acme.default_lane", "no lane is called slwo; did you mean slow?"),
    ]


def test_two_replicas_with_one_id_are_refused() -> None:
    one = Replica(id="a", url="http://a")
    assert found(replicas=(one, replace(one, id="b"), replace(one, url="http://c"))) == [
        ("replicas[2].id", "a is already the id of replicas[0]; give one another id")
    ]


def test_what_goes_with_every_question_to_an_engine_is_said_once_and_kept_out_of_what_is_written_down() -> None:
    one = Replica(id="a", url="https://a", api_key_file=Path("key"), headers={"x-team": "b"}, ca=Path("ca.pem"))
    assert found(replicas=(one,)) == []
    assert one.public == Replica(id="a", url="https://a")
    for headers, flaw in (
        ({"Host": "b"}, "host is written with every request; leave it out"),
        ({"x-a": "1", "X-A": "2"}, "x-a is given twice"),
        ({"authorization": "b"}, "authorization is what api_key_file is for; give one of the two"),
    ):
        assert ("replicas[0].headers", flaw) in found(replicas=(replace(one, headers=headers),))
    assert found(replicas=(replace(one, url="http://a"),)) == [
        ("replicas[0].ca", "expected an https address, got http://a")
    ]


def test_one_key_has_one_holder_and_is_not_shown() -> None:
    other = Tenant(name="other", key_sha256=(KEYS[1], KEYS[0]))
    assert found(tenants=(ACME, other), admin_keys=(KEYS[2], KEYS[0], KEYS[2])) == [
        ("tenants.other.key_sha256[1]", "the same key is already in tenants.acme.key_sha256[0]"),
        ("admin_keys[2]", "the same key is already in admin_keys[0]"),
    ]


def test_a_tenant_nobody_can_be_is_refused() -> None:
    assert [path for path, _ in found(tenants=(Tenant(name="acme"),))] == ["tenants.acme.key_sha256"]
    assert [path for path, _ in found(tenants=(replace(ANONYMOUS, key_sha256=(KEYS[0],)),))] == ["tenants.anonymous"]


def test_the_embedded_engine_serves_alone() -> None:
    one = Replica(id="a", url="http://a")
    assert found(embedded=EngineConfig()) == []
    assert [path for path, _ in found(embedded=EngineConfig(), replicas=(one,))] == ["embedded"]


def test_reserves_fit_into_the_fleet() -> None:
    lanes = tuple(replace(lane, reserve=0.3) for lane in LANES.values())
    assert found(lanes=lanes) == [("lanes", "expected reserves that add up to 1 at most, got 1.2")]
    assert found(lanes=tuple(replace(lane, reserve=0.25) for lane in LANES.values())) == []


def test_no_prompt_is_both_short_and_long() -> None:
    assert found(classify=ClassifyConfig(long_above_tokens=100, fast_below_tokens=101)) == []
    assert [path for path, _ in found(classify=ClassifyConfig(long_above_tokens=100, fast_below_tokens=102))] == [
        "classify.fast_below_tokens"
    ]


def test_a_spool_is_no_smaller_than_what_it_relieves() -> None:
    assert [path for path, _ in found(relay=RelayConfig(bytes=10, spool_bytes=9))] == ["relay.spool_bytes"]


def test_only_a_tenants_key_counts_as_a_key() -> None:
    assert GatewayConfig(tenants=(ACME,)).has_keys
    assert not GatewayConfig(admin_keys=(KEYS[0],)).has_keys


def test_keys_are_asked_for_from_the_first_on_or_where_nobody_is_served_without() -> None:
    assert GatewayConfig(tenants=(ACME,)).asks_for_keys
    assert GatewayConfig(anonymous=replace(ANONYMOUS, allowed=False)).asks_for_keys
    assert not GatewayConfig().asks_for_keys
