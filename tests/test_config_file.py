"""The config file as a person meets it: the example is true, and whatever is wrong is named with its line and path."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from headgate.config import hints
from headgate.config.engine import EngineConfig
from headgate.config.file import MOST_PROBLEMS, describe, hints_of, load, parse, replica_at
from headgate.config.fleet import EmulateConfig, FleetConfig
from headgate.config.gateway import ROUTE_WEIGHTS, GatewayConfig, Tenant
from headgate.config.listen import ListenConfig, TlsConfig, check_exposure
from headgate.model.errors import StartupError
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from tests.keys import hash_key

EXAMPLE = Path(__file__).parent.parent / "headgate.example.yaml"
TEXT = EXAMPLE.read_text()
KEY = "a" * 64
SUCH_AS = "expected text such as http://host:8000, with no path but /v1, or unix:/run/x.sock"
A_HASH = "expected text of 64 lowercase hex digits, the SHA-256 of a key that is not empty, got something else"
ONE_KEY = f"tenants: {{acme: {{key_sha256: [{KEY}]}}}}\n"


def switched_on(text: str) -> str:
    """With the lines that are off: those whose # is not followed by one space and prose."""
    return re.sub(r"^#(?! \S|$)", "", text, flags=re.MULTILINE)


def without(section: str, text: str) -> str:
    return re.sub(rf"^{section}:.*\n(?:(?: .*)?\n)*", "", text, flags=re.MULTILINE)


def problems(text: str) -> list[str]:
    with pytest.raises(StartupError) as caught:
        parse(text, "x.yaml")
    return [line.removeprefix("x.yaml:") for line in str(caught.value).splitlines()]


def lane(config: GatewayConfig, name: str) -> Lane:
    return next(one for one in config.lanes if one.name == name)


# -- the example ------------------------------------------------------------------------------------------


def test_the_example_says_what_it_shows() -> None:
    config = load(EXAMPLE)
    assert [one.name for one in config.lanes] == ["fast", "slow", "long", "batch", "agents"]
    assert [lane(config, name) for name in ("fast", "slow", "long")] == [
        LANES[name] for name in ("fast", "slow", "long")
    ]
    assert lane(config, "batch") == replace(LANES["batch"], slow_client="spool")
    assert lane(config, "agents") == Lane(
        name="agents", priority=1, ttft_target_s=1.0, gap_target_s=0.2, wait_bound_s=0.8, weight=2.0
    )
    acme, nightly = config.tenants
    assert acme == Tenant(
        name="acme",
        key_sha256=(f"{1:064}", f"{2:064}"),
        tier="premium",
        count_tokens="uncached",
        weight=4.0,
        requests_per_min=600,
        tokens_per_min=400_000,
        concurrency=32,
        trusted=True,
        default_lane="agents",
        lanes=frozenset({"fast", "slow", "long", "agents"}),
        max_tokens=4096,
    )
    assert nightly == Tenant(name="nightly", key_sha256=(f"{3:064}",), default_lane="batch")
    assert config.anonymous == Tenant(
        name="anonymous", allowed=False, weight=0.5, requests_per_min=60, tokens_per_min=20_000, max_tokens=512
    )
    assert config.admin_keys == (f"{4:064}",)
    assert config.replicas == (
        Replica(
            id="gpu-a",
            url="http://127.0.0.1:8001",
            model="llama-3.1-8b",
            kind="vllm",
            slots=64,
            token_limit=200_000,
            weight=2.0,
            tags={"quantization": "fp8", "gpu_type": "h100", "version": "2.10"},
        ),
        Replica(id="/run/headgate/long.sock", url="unix:/run/headgate/long.sock", lanes=frozenset({"long", "batch"})),
    )


def test_what_the_example_does_not_mark_is_the_default() -> None:
    config, default = load(EXAMPLE), GatewayConfig()
    for section in ("listen", "classify", "routing", "limits", "timeouts", "relay", "health", "retry"):
        assert getattr(config, section) == getattr(default, section)
    assert config.embedded is None


def test_what_the_example_has_off_can_be_switched_on() -> None:
    config = parse(without("replicas", without("models", switched_on(TEXT))), "x.yaml")
    assert config.embedded == EngineConfig()
    assert config.listen.tls == TlsConfig(cert=Path("/etc/headgate/cert.pem"), key=Path("/etc/headgate/key.pem"))
    assert config.fleet == FleetConfig(kind="processes", emulate=EmulateConfig(profile="h100-llama3-8b"))
    assert problems(without("fleet", switched_on(TEXT)))[0].endswith(
        "embedded: expected nothing while replicas are given: they serve instead of it"
    )


def sections(hint: Any) -> Iterator[Any]:
    """Every config class that a file can fill, from the hints of the fields that lead there."""
    cls: Any = hint if is_dataclass(hint) and isinstance(hint, type) else None
    if cls is not None:
        yield cls
    for inner in get_args(hint) if cls is None else hints_of(cls).values():
        yield from sections(inner)


def test_the_example_shows_every_setting_and_every_choice() -> None:
    shown, known = set(re.findall(r"(\w+):", TEXT)), set(sections(GatewayConfig))
    assert len(known) > 30
    for cls in known:
        assert {one.name for one in fields(cls)} - {"name"} <= shown, cls
    for choices in (hints.Algorithm, hints.TierName):
        assert all(choice in TEXT for choice in get_args(choices))


# -- what is filled in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_means_the_defaults_and_the_embedded_engine(text: str) -> None:
    assert parse(text, "x.yaml") == GatewayConfig(embedded=EngineConfig())


def test_a_changed_promise_keeps_its_share_for_waiting() -> None:
    fast = lane(parse("lanes: {fast: {ttft_target_s: 0.1}}", "x.yaml"), "fast")
    assert fast.wait_bound_s == pytest.approx(0.08)
    assert replace(fast, ttft_target_s=0.5, wait_bound_s=0.4) == LANES["fast"]
    both = lane(parse("lanes: {fast: {ttft_target_s: 0.1, wait_bound_s: 0.3}}", "x.yaml"), "fast")
    assert both.wait_bound_s == 0.3
    assert lane(parse("lanes: {fast: {weight: 2}}", "x.yaml"), "fast") == replace(LANES["fast"], weight=2.0)


def test_every_routing_weight_can_be_set_and_the_others_stay() -> None:
    for name in ROUTE_WEIGHTS:
        config = parse(f"routing: {{weights: {{{name}: 7}}}}", "x.yaml")
        assert config.routing.weights == {**ROUTE_WEIGHTS, name: 7.0}
    assert parse("routing: {exploration: 0}", "x.yaml").routing.weights == ROUTE_WEIGHTS


def test_anonymous_is_allowed_until_somebody_has_a_key() -> None:
    assert parse("anonymous: {weight: 2}", "x.yaml").anonymous.allowed
    assert not parse(ONE_KEY, "x.yaml").anonymous.allowed
    assert not parse(f"{ONE_KEY}anonymous: {{weight: 2}}", "x.yaml").anonymous.allowed
    assert parse(f"{ONE_KEY}anonymous: {{allowed: true}}", "x.yaml").anonymous.allowed


def test_replicas_get_an_id_and_one_spelling() -> None:
    (replica,) = parse("replicas: [{url: 'http://h:1/'}]", "x.yaml").replicas
    assert replica == Replica(id="h:1", url="http://h:1") == replica_at("http://h:1/")
    with pytest.raises(
        StartupError,
        match=r"^--replica: expected text such as http://host:8000, .*, got 'h:1'; did you mean http://h:1\?$",
    ):
        replica_at("h:1")


def test_numbers_are_plain_and_aliases_work() -> None:
    config = parse("timeouts: {header_s: 1e1, body_s: .5, connect_s: &t 3, stall_s: *t}", "x.yaml").timeouts
    assert (config.header_s, config.body_s, config.connect_s, config.stall_s) == (10, 0.5, 3, 3)


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lisen: {}", "1: lisen: unknown key; did you mean listen?"),
        ("\nlanes:\n  fast:\n    wait_bond_s: 1", "4: lanes.fast.wait_bond_s: unknown key; did you mean wait_bound_s?"),
        ("retry: {zzz: 1}", "1: retry.zzz: unknown key; there is ratio, attempts"),
        ("lanes: {fast: {name: x}}", "1: lanes.fast.name: unknown key; there is priority, "),
        ("anonymous: {key_sha256: []}", "1: anonymous.key_sha256: unknown key; "),
        ("'a\\nb': 1", "1: 'a\\\\nb': unknown key; "),
        ("- 1", "1: expected a mapping, got a list"),
        ("3", "1: expected a mapping, got a single value"),
        ("listen:", "1: listen: expected a mapping, got nothing"),
        ("tenants: []", "1: tenants: expected a mapping, got a list"),
        ("replicas: {}", "1: replicas: expected a list, got a mapping"),
        ("lanes: 1", "1: lanes: expected a mapping, got a single value"),
        ("admin_keys: sk-secret", "1: admin_keys: expected a list, got a single value"),
        ("listen: {port: eight}", "1: listen.port: expected a whole number from 0 to 65535, got 'eight'"),
        ("listen: {port: '8000'}", "1: listen.port: expected a whole number from 0 to 65535, got '8000'"),
        ("listen: {port: 80.0}", "1: listen.port: expected a whole number from 0 to 65535, got 80.0"),
        ("listen: {port: 1:30}", "1: listen.port: expected a whole number from 0 to 65535, got '1:30'"),
        ("listen: {port: 0777}", "1: listen.port: expected a whole number from 0 to 65535, got '0777'"),
        ("listen: {port: true}", "1: listen.port: expected a whole number from 0 to 65535, got true"),
        ("listen: {port: [1]}", "1: listen.port: expected a whole number from 0 to 65535, got a list"),
        ("listen: {port: null}", "1: listen.port: expected a whole number from 0 to 65535, got nothing"),
        ("listen: {port: 65536}", "1: listen.port: expected a whole number from 0 to 65535, got 65536"),
        ("listen: {port: $PORT}", "1: listen.port: expected a whole number from 0 to 65535, got '$PORT'"),
        ("listen: {host: '*'}", "1: listen.host: expected text such as 127.0.0.1, ::1 or gateway.internal, got '*'"),
        ("listen: {tls: {cert: a}}", "1: listen.tls.key: missing; expected a path"),
        ("listen: {tls: {cert: a, key: ''}}", "1: listen.tls.key: expected a path, got ''"),
        ("embedded: {truncate: yes}", "1: embedded.truncate: expected true or false, got 'yes'"),
        (
            "timeouts: {stall_s: 0}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got 0",
        ),
        (
            "timeouts: {stall_s: 5 m 3}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got '5 m 3'",
        ),
        (
            "timeouts: {stall_s: 25h}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got '25h'",
        ),
        (
            "timeouts: {stall_s: 5s9}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got '5s9'",
        ),
        (
            "timeouts: {stall_s: .inf}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got '.inf'",
        ),
        (
            "timeouts: {stall_s: 1e999}",
            "1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got '1e999'",
        ),
        (
            f"timeouts: {{stall_s: {'9' * 99}}}",
            f"1: timeouts.stall_s: expected a number above 0, at most 86400, or a time such as 5m, got {'9' * 40}",
        ),
        ("retry: {ratio: !!float nan}", "1: retry.ratio: expected a number from 0 to 1, got 'nan'"),
        ("retry: {attempts: !!int x}", "1: retry.attempts: expected a whole number from 1 to 10, got 'x'"),
        ("retry: {ratio: !x 1}", "1: retry.ratio: expected a number from 0 to 1, got the tag '!x'"),
        ("retry: !!set {a}", "1: retry: expected a mapping, got the tag "),
        ("lanes: {fast: {reserve: -0.1}}", "1: lanes.fast.reserve: expected a number from 0 to 1, got -0.1"),
        ("lanes: {fast: {slow_client: drop}}", "1: lanes.fast.slow_client: expected one of cancel, spool, got 'drop'"),
        (
            "lanes: {mine: {priority: 1, ttft_target_s: 1, weight: 1}}",
            "1: lanes.mine.gap_target_s: missing; expected a number",
        ),
        ("lanes: {a b: {}}", "1: lanes.'a b': expected a name of letters, digits, '_' and '-', at most 64"),
        ("lanes: {fast: {weight: 1, weight: 2}}", "1: lanes.fast.weight: given twice, first on line 1"),
        ("retry: {}\n\nretry: {}", "3: retry: given twice, first on line 1"),
        ("tenants: {1: {}}", "1: tenants: expected keys that are text, got 1: put it in quotes"),
        ("tenants: {[1]: {}}", "1: tenants: expected keys that are text, got a list"),
        ("lanes: {<<: {}}", "1: lanes.'<<': expected a name"),
        ("routing: {algorithm: random}", "1: routing.algorithm: expected one of balanced, round_robin, "),
        ("replicas:\n- url: h:1", "2: replicas[0].url: expected text such as http://host:8000"),
        *(
            (f"replicas: [{{url: '{url}'}}]", f"1: replicas[0].url: {SUCH_AS}, got '{url}'{said}")
            for url, said in (
                ("[::1]:8000", "; did you mean http://[::1]:8000?"),
                ("http://h:1/v1/chat", "; leave out the path: http://h:1"),
                ("http://h:1?x", "; leave out the path: http://h:1"),
                ("ftp://h", ""),
            )
        ),
        (f"admin_keys: ['{KEY.upper()}']", f"1: admin_keys[0]: {A_HASH}; write it in lowercase"),
        (f"admin_keys: ['{hash_key('')}']", f"1: admin_keys[0]: {A_HASH}"),
        ("admin_keys: [sk-secret]", f"1: admin_keys[0]: {A_HASH}; `headgate key --hash` prints the hash of a key"),
        (
            "lanes: {fast: {reserve: 25 %}}",
            "1: lanes.fast.reserve: expected a number from 0 to 1, got '25 %'; write 0.25",
        ),
        ("lanes: {fast: {reserve: many}}", "1: lanes.fast.reserve: expected a number from 0 to 1, got 'many'"),
        (
            "embedded: {context: 64, default_max_tokens: 65}",
            "1: embedded.default_max_tokens: expected no more than context, got 65: a slot holds 64 tokens",
        ),
        (
            "replicas:\n- url: http://a\n- {slots: 0}",
            "3: replicas[1].slots: expected a whole number from 1 to 1000000000, got 0",
        ),
        (
            "replicas: [{url: http://a, tags: {version: 1.10}}]",
            "1: replicas[0].tags.version: expected text of 1 to 256 characters, got 1.10: put it in quotes",
        ),
        ("replicas: [{url: http://a, kind: vlm}]", "1: replicas[0].kind: expected one of headgate, vllm, "),
        ("replicas: [{url: http://a, lanes: [fast, fast]}]", "1: replicas[0].lanes: expected no name twice"),
        (
            "replicas: [{url: http://a, lanes: [fsat]}]",
            "1: replicas[0].lanes: no lane is called fsat; did you mean fast?",
        ),
        (
            "replicas:\n- url: http://a\n- url: http://a/",
            "3: replicas[1].id: a is already the id of replicas[0]; give one another id",
        ),
        ("tenants: {a: {}}", "1: tenants.a.key_sha256: expected at least one key"),
        (f"tenants:\n  a: {{key_sha256: [{KEY}]}}\n  a: {{}}", "3: tenants.a: given twice, first on line 2"),
        (
            f"tenants:\n  a: {{key_sha256: [{KEY}]}}\n  b:\n    key_sha256: [{KEY}]",
            "4: tenants.b.key_sha256[0]: the same key is already in tenants.a.key_sha256[0]",
        ),
        (
            f"tenants: {{a: {{key_sha256: [{KEY}], default_lane: no}}}}",
            "1: tenants.a.default_lane: no lane is called no; ",
        ),
        (f"admin_keys:\n- {KEY}\n- {KEY}", "3: admin_keys[1]: the same key is already in admin_keys[0]"),
        ("tiers: {premum: {weight: 2}}", "1: tiers.premum: no tier is called premum; did you mean premium?"),
        ("routing: {weights: {loud: 1}}", "1: routing.weights.loud: no score is called loud; did you mean load?"),
        (
            "routing: {weights: {load: 0, prefix: 0, session: 0}}",
            "1: routing.weights: expected at least one above 0: without, every replica has the same score",
        ),
        ("anonymous: {default_lane: slo}", "1: anonymous.default_lane: no lane is called slo; did you mean slow?"),
        ("listen: {workers: 2}\nepp: {}", "2: epp: expected none with listen.workers above 1"),
        ("listen: {workers: 2, uds: /x}", "1: listen.uds: expected none with listen.workers above 1"),
        (
            "listen: {workers: 2}\nmodels: [{name: a, versions: [{name: x, model: m}, {name: y, model: n}]}]",
            "2: models: expected none with listen.workers above 1",
        ),
        ("lanes: {fast: {reserve: 1}}", "1: lanes: expected reserves that add up to 1 at most, got 1.125"),
    ],
)
def test_a_problem_is_named_with_its_line_and_path(text: str, expected: str) -> None:
    found = problems(text)
    assert [line for line in found if line.startswith(expected)], found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "1: not YAML: "),
        ("a:\n\tb: 1", "2: a tab in front of the text: YAML is indented with spaces"),
        ("a:\n  b: 1\n \tc: 1", "3: a tab in front of the text: YAML is indented with spaces"),
        ("\na: b: c", "2: not YAML: mapping values are not allowed here"),
        ("--- {}\n--- {}", "2: not YAML: expected a single document in the stream, but found another document"),
        ("a: *b", "1: not YAML: found undefined alias 'b'"),
        ("a: \x01", " not YAML: unacceptable character"),
        ('a: "\\U99999999"', " not YAML: "),
        ("[" * 500, " not a config: nested too deep"),
    ],
)
def test_what_is_no_yaml_is_refused_in_one_line(text: str, expected: str) -> None:
    (line,) = problems(text)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("admin_keys: [sk-secret]", "admin_keys: sk-secret", "tenants: {a: {key_sha256: [sk-secret]}}"),
        *("tenants: {a: {key_sha256: {sk-secret: 1}}}", "tenants: {a: {key: sk-secret}}", "tenants: {a: sk-secret}"),
    ],
)
def test_a_key_written_where_its_hash_belongs_is_not_repeated(text: str) -> None:
    assert "sk-secret" not in "".join(problems(text))


def test_all_problems_are_told_in_the_files_order_up_to_a_bound() -> None:
    found = problems("retry: {ratio: 2, attempts: 0}\nlisten: {port: -1}\nreplicas: [{lanes: [x]}]")
    assert [line.split(": ")[1] for line in found] == [
        "retry.ratio",
        "retry.attempts",
        "listen.port",
        "replicas[0].url",
    ]
    many = problems("\n".join(f"k{number}: 1" for number in range(50)))
    assert len(many) == MOST_PROBLEMS + 1
    assert many[-1] == " and 30 more"


def test_aliases_cannot_explode() -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 30)]
    assert len(problems("\n".join(["a0: &a0 [x]", *levels]))) == MOST_PROBLEMS + 1
    assert problems("replicas: &r [*r]")[0].startswith("1: replicas[0]: expected a mapping, got a list")


def test_a_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"absent\.yaml: No such file or directory; `headgate init` writes a config"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    with pytest.raises(StartupError, match=r"latin\.yaml: not UTF-8 text"):
        load(tmp_path / "latin.yaml")


# -- exposure, summary, keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_key(host: str) -> None:
    check_exposure(ListenConfig(host=host), has_keys=False, insecure=False)


@pytest.mark.parametrize(("uds_for", "private"), [("owner", True), ("group", False), ("everyone", False)])
def test_a_unix_socket_needs_no_key_and_is_private_to_its_owner(uds_for: str, private: bool) -> None:
    config = parse(f"listen: {{host: 0.0.0.0, uds: /run/h.sock, uds_for: {uds_for}}}", "x.yaml")
    check_exposure(config.listen, has_keys=False, insecure=False)
    assert config.listen.is_private is private
    assert describe(config).endswith("listens on unix:/run/h.sock")


def test_bodies_together_may_not_be_less_than_one_of_them() -> None:
    assert problems("limits: {bodies_bytes: 1000}") == [
        "1: limits.bodies_bytes: expected no less than limits.body_bytes",
    ]
    assert problems("promises: {ttft_least_s: 5, ttft_most_s: 4, tpot_most_s: 0.001}") == [
        "1: promises.ttft_least_s: expected no more than promises.ttft_most_s",
        "1: promises.tpot_least_s: expected no more than promises.tpot_most_s",
    ]
    assert problems("limits: {held_bytes: 1000}") == ["1: limits.held_bytes: expected no less than limits.body_bytes"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "0", "localhost.example.org"])
def test_other_addresses_need_a_key_or_insecure(host: str) -> None:
    config = GatewayConfig(listen=ListenConfig(host=host), admin_keys=(KEY,))
    keyed = replace(config, tenants=(Tenant(name="a", key_sha256=(KEY,)),))
    with pytest.raises(StartupError, match=rf"listen\.host: {host} .*key_sha256.*127\.0\.0\.1.*--insecure"):
        check_exposure(config.listen, config.has_keys, insecure=False)
    check_exposure(config.listen, config.has_keys, insecure=True)
    check_exposure(keyed.listen, keyed.has_keys, insecure=False)


def test_the_summary_counts_and_notes_what_may_not_be_meant() -> None:
    assert describe(load(EXAMPLE)) == "ok: 2 replicas, 5 lanes, 2 tenants, listens on http://127.0.0.1:8000"
    assert describe(parse("listen: {host: '::1', tls: {cert: a, key: b}}", "x.yaml")) == (
        "ok: the embedded engine, 4 lanes, 0 tenants, listens on https://[::1]:8000"
    )
    odd = parse(f"{ONE_KEY}anonymous: {{allowed: true}}\nreplicas: [{{url: http://a, lanes: [fast, slow, long]}}]", "x")
    assert describe(odd).splitlines() == [
        "ok: 1 replica, 4 lanes, 1 tenant, listens on http://127.0.0.1:8000",
        "note: no replica serves lane batch",
        "note: requests without a key are served too (anonymous.allowed)",
    ]


# -- anything at all --------------------------------------------------------------------------------------

LINES = switched_on(TEXT).splitlines()
VALUES = [
    "",
    "null",
    "[]",
    "{}",
    "-1",
    "1e400",
    "'x'",
    "[1, 2]",
    "{a: 1}",
    "!!binary x",
    "&a [*a]",
    "*a",
    "\ud800",
    "|",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    start = draw(st.integers(0, len(LINES) - 1))
    lines = LINES[start : start + draw(st.integers(1, 30))] if draw(st.booleans()) else list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        line, value = lines[at], draw(st.sampled_from(VALUES) | st.text(max_size=8))
        other = lines[draw(st.integers(0, at))]
        changed = [line[1:], line[2:], f"  {line}", f"{line}\n{line}", other, f"{line.partition(':')[0]}: {value}"]
        lines[at] = draw(st.sampled_from(changed))
    return "\n".join(lines)


@settings(max_examples=100, deadline=None)
@given_any(mutated())
def test_whatever_is_in_the_file_it_is_read_or_refused(text: str) -> None:
    try:
        said = describe(parse(text, "x.yaml"))
    except StartupError as error:
        said = str(error)
    for line in said.split("\n"):
        assert re.match(r"(x\.yaml:(\d+:)?|ok:|note:) \S", line)


@pytest.mark.parametrize("value", ["{}", "[[]]", "!x y"])
def test_no_setting_takes_what_is_no_value(value: str) -> None:
    spoilt, count = re.subn(r"^( +\w+): [\w.]+ +#.*", rf"\1: {value}", TEXT, flags=re.MULTILINE)
    assert count > MOST_PROBLEMS
    said = problems(spoilt)
    assert len(said) == MOST_PROBLEMS + 1
    assert said[-1] == f" and {count - MOST_PROBLEMS} more"


# -- one place for each default ---------------------------------------------------------------------------

PACKAGE = Path(__file__).parent.parent / "src" / "headgate"
NO_SETTING = {
    "attempts": "of sending a batch of spans, not of a request",
    "body_bytes": "of a replica's answer",
    "body_s": "of a replica's answer",
    "concurrency": "of a load test",
    "context": "of an emulated machine",
    "header_bytes": "of a replica's answer",
    "held_bytes": "of one connection",
    "kind": "of a replica, not of a fleet",
    "max_tokens": "of a lane, not of a task",
    "name": "of other things",
    "queue_limit": "of an engine's sequences; a lane's are requests",
    "runaway": "of a request that does not ask for it",
    "slots": "of an emulated machine",
    "start_s": "of a pool that no fleet describes",
    "timeout_s": "of a call",
}
"""Names that a config class and something else both give a default to, and what the other one means."""


TRIVIAL = ("None", "True", "False", "0", "0.0", "1", "1.0", "''", "()", "{}")


def given(value: ast.expr | None) -> ast.expr | None:
    """The default of a field, also of one with metadata."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return next((one.value for one in value.keywords if one.arg == "default"), None)
    return value


def defaults() -> Iterator[tuple[str, str, str]]:
    """(name, place, value) for every field and parameter whose default is a literal, trivial ones left out."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[tuple[str, ast.expr | None]] = []
            if isinstance(node, ast.ClassDef):
                parts = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                found = [(ast.unparse(one.target), given(one.value)) for one in parts]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
                named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                found = [(one.arg, value) for one, value in (*last, *named)]
            for name, value in found:
                refers = value is None or any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(value))
                if value is not None and not refers and ast.unparse(value) not in TRIVIAL:
                    yield name, str(path.relative_to(PACKAGE)), ast.unparse(value)


def test_no_default_of_the_config_is_written_down_twice() -> None:
    every = list(defaults())
    settings = {name for name, place, _ in every if place.startswith("config/")}
    assert len(settings) > 60
    elsewhere = {one for one in every if not one[1].startswith("config/")}
    assert sorted(one for one in elsewhere if one[0] in settings and one[0] not in NO_SETTING) == []
    within = Counter((name, value) for name, place, value in every if place.startswith("config/"))
    assert [one for one, times in within.items() if times > 1] == []


def test_what_is_excepted_is_still_there() -> None:
    every = {(name, place.startswith("config/")) for name, place, _ in defaults()}
    assert [name for name in NO_SETTING if not {(name, True), (name, False)} <= every] == []
