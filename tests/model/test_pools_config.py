"""Several pools in the config: what each may say, what is filled in, and what is refused in words."""

from pathlib import Path

import pytest

from headgate.config.engine import EngineConfig
from headgate.config.file import describe, parse
from headgate.config.fleet import EmulateConfig, FleetConfig, PoolConfig
from headgate.config.forms.schema import documents_of
from headgate.config.gateway import GatewayConfig
from headgate.model.errors import StartupError

TWO = """
fleet:
  pools:
    - {name: old, model: a1, version: v1, price: 2, scale: {max: 4}, tags: {gpu_type: a100}}
    - {name: new, model: a2, lanes: [fast], kind: ray, engine: {slots: 4}}
"""
VERSIONS = """
models:
  - name: assistant
    versions: [{name: v1, model: a1, weight: 1}, {name: v2, model: a2}]
"""


def config(text: str) -> GatewayConfig:
    return parse(text, "x.yaml")


def problems(text: str) -> str:
    with pytest.raises(StartupError) as caught:
        config(text)
    return str(caught.value)


def test_versions_that_no_replica_of_the_fleet_serves_are_refused_before_they_answer_404() -> None:
    single = "fleet: {kind: processes}\n"
    assert "models[0].versions[0].model: no replica serves a1; there is smollm2" in problems(single + VERSIONS).lower()
    emulated = "fleet: {kind: processes, emulate: {profile: h100-llama3-8b}}\n"
    assert "no replica serves a2; there is emulated-h100-llama3-8b" in problems(emulated + VERSIONS)
    assert "no replica serves a1" in problems("fleet: {kind: ray}\nembedded: {model_name: m}\n" + VERSIONS)
    assert "no replica serves a2" in problems(TWO.replace("a2", "a3") + VERSIONS)


def test_what_engines_in_pods_serve_is_not_known_before_they_are_asked() -> None:
    assert config("fleet: {kind: kubernetes}\n" + VERSIONS).models
    assert config("fleet: {pools: [{name: a, emulate: {profile: mine.json}}]}\n" + VERSIONS).models


def test_versions_may_be_served_by_pools_and_by_fixed_replicas_side_by_side() -> None:
    assert config(TWO + VERSIONS).models
    beside = "replicas: [{url: 'http://x', model: a2}]\n" + TWO.replace("a2", "b") + VERSIONS
    assert describe(config(beside)).startswith("ok: 1 replica and 2 pools,")
    own = "fleet: {kind: processes}\nembedded: {model_name: a1, loras: [x/a2.gguf]}\n"
    assert config(own + VERSIONS).models


def test_a_fleet_of_one_pool_is_the_same_as_before() -> None:
    (pool,) = config("fleet: {kind: processes, drain_s: 7, scale: {max: 3}}").fleet.every
    assert (pool.name, pool.kind, pool.drain_s, pool.scale.max, pool.scale.warm) == ("", "processes", 7.0, 3, 0)
    assert config("").fleet.every == ()
    assert config(TWO).fleet.served(None) == frozenset({"a1", "a2"})


def test_a_pool_has_settings_of_its_own() -> None:
    old, new = config(TWO).fleet.every
    assert (old.labels, old.gpu_type, old.price, new.price) == (
        {"version": "v1", "gpu_type": "a100"},
        "a100",
        2.0,
        None,
    )
    assert new.labels == {}
    assert new.engine == EngineConfig(slots=4)
    assert (new.serves("fast"), new.serves("batch"), old.serves("batch")) == (True, False, True)
    assert config("observe: {price_per_replica_hour: 3}" + TWO).fleet.pools[1].price == 3.0


def test_the_cheapest_pool_of_each_gpu_type_keeps_one_warm_for_lanes_that_people_wait_for() -> None:
    text = """
fleet:
  pools:
    - {name: dear, price: 5, tags: {gpu_type: h100}}
    - {name: cheap, price: 2, tags: {gpu_type: a100}}
    - {name: same, price: 3, tags: {gpu_type: a100}}
    - {name: only-batch, lanes: [batch], tags: {gpu_type: l4}}
    - {name: none, scale: {warm: 0}, tags: {gpu_type: t4}}
    - {name: full, scale: {min: 2, max: 2}, tags: {gpu_type: l40}}
    - {name: idle, scale: {min: 0, to_zero: true}, tags: {gpu_type: b200}}
"""
    warm = {pool.name: pool.scale.warm for pool in config(text).fleet.pools}
    assert warm == {"dear": 1, "cheap": 1, "same": 0, "only-batch": 0, "none": 0, "full": 0, "idle": 0}


def test_a_pool_on_kubernetes_has_a_workload_of_its_own() -> None:
    text = "fleet: {pools: [{name: a, kind: kubernetes}, {name: b, kind: kubernetes, kubernetes: {name: mine}}]}"
    assert [pool.kubernetes.name for pool in config(text).fleet.pools] == ["headgate-engine-a", "mine"]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ("[{name: a}, {name: a}]", "fleet.pools[1].name: a is already the name of fleet.pools[0]"),
        ("[{name: A}]", "fleet.pools[0].name: expected text of lowercase letters"),
        ("[{name: a, lanes: [quick]}]", "fleet.pools[0].lanes: no lane is called quick"),
        ("[{name: a, served_as: x}]", "fleet.pools[0].served_as: expected a model with it"),
        (
            "[{name: a, kind: kubernetes, engine: {slots: 2}}]",
            "engine: expected nothing with kubernetes",
        ),
        ("[{name: a, emulate: {profile: h100-llama3-8b}, engine: {}}]", "expected nothing with emulate"),
        ("[{name: a, engine: {context: 64, default_max_tokens: 99}}]", "fleet.pools[0].engine.default_max_tokens"),
        ("[{name: a, version: v, tags: {version: w}}]", "version is given as version already"),
        ("[{name: a, scale: {min: 9, max: 3}}]", "fleet.pools[0].scale.max: expected at least 9"),
        ("[{name: a, kind: ray, emulate: {profile: x}}]", "fleet.pools[0].emulate: expected nothing with kind ray"),
        ("[{name: a, kubernetes: {port: 1}}]", "fleet.pools[0].kubernetes: expected nothing with kind processes"),
        ("[{name: a, ray: {cpus: 2}}]", "fleet.pools[0].ray: expected nothing with kind processes"),
        ("[{name: a, history: f, scale: {forecast: false}}]", "fleet.pools[0].history: expected nothing"),
        ("[{name: a, history: f}, {name: b, history: f}]", "fleet.pools[0] writes that file already"),
        (
            "[{name: a, kind: kubernetes, kubernetes: {name: x}}, {name: b, kind: kubernetes, kubernetes: {name: x}}]",
            "fleet.pools[1].kubernetes.name: x is already the workload of fleet.pools[0]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(pools: str, said: str) -> None:
    assert said in problems(f"fleet: {{pools: {pools}}}")


def test_pools_and_the_settings_of_a_single_pool_exclude_each_other() -> None:
    said = "fleet: expected either pools or the settings of a single pool, not both"
    assert said in problems("fleet: {kind: processes, pools: [{name: a}]}")
    assert said in problems("fleet: {scale: {max: 3}, pools: [{name: a}]}")


def test_histories_of_pools_may_differ() -> None:
    pools = config("fleet: {pools: [{name: a, history: f}, {name: b, history: g}]}").fleet.pools
    assert [pool.history for pool in pools] == [Path("f"), Path("g")]


def test_a_lane_that_no_pool_serves_is_noted() -> None:
    assert "note: no replica serves lane slow" in describe(config("fleet: {pools: [{name: a, lanes: [fast]}]}"))


def test_an_emulated_engine_is_told_what_the_config_says() -> None:
    emulate = EmulateConfig(profile="h100-llama3-8b", dilate=2, cold_start_s=0.5, slots=4, context=512)
    words = ["--emulate", "h100-llama3-8b", "--dilate", "2", "--cold-start", "0.5", "--slots", "4", "--context", "512"]
    assert emulate.words == words
    assert EmulateConfig(profile="x").words == ["--emulate", "x", "--dilate", "1", "--cold-start", "0"]


def test_pools_of_vllm_name_their_model_and_share_no_device() -> None:
    vllm = "vllm: {model: org/x, flags: [FLAGS]}"
    one = f"fleet: {{pools: [{{name: a, {vllm}}}]}}"
    assert config(one.replace("FLAGS", "")).fleet.served(None) == frozenset({"org/x"})
    assert config(one.replace("FLAGS", "--served-model-name, m")).fleet.served(None) == frozenset({"m"})
    assert config(one.replace("FLAGS", "--lora-modules, a=b")).fleet.served(None) is None
    assert config(one.replace("FLAGS", "")).embedded is None
    two = f"fleet: {{pools: [{{name: a, {vllm}}}, {{name: b, {vllm}}}]}}".replace("FLAGS", "")
    assert len(config(two).fleet.pools) == 2, "they share the machine's devices out among them"
    assert "engine: expected nothing with vllm" in problems(
        one.replace("FLAGS", "").replace("name: a,", "name: a, engine: {},")
    )


def test_inherited_settings_keep_their_meaning_in_the_schema_for_editors() -> None:
    told = documents_of(PoolConfig)
    assert told["drain_s"].startswith("Maximum time for a leaving replica")
    assert told["price"].startswith("Price of a replica per hour")
    assert documents_of(FleetConfig)["scale"] == told["scale"]
