"""Manifests and the ScaledObject against the official schemas, and against what the fleet asks of the API."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.export.keda import keda, scaled_object
from headgate.export.kubernetes import ManifestValues, checked, cluster_text, kubernetes, manifests
from headgate.model.errors import StartupError
from headgate.publish.metrics_page import families
from tests.keys import hash_key
from tests.test_config_file import without

EXAMPLE = without("replicas", (Path(__file__).parents[2] / "headgate.example.yaml").read_text())
KEYS = {"tenants": {"t": {"key_sha256": [hash_key("k")]}}}
CASES: dict[str, tuple[str, ManifestValues]] = {
    "defaults": ("", ManifestValues()),
    "example": (EXAMPLE, ManifestValues(name="prod", namespace="llm", image="registry.test/h:1", gpus=2)),
    "keda": (
        json.dumps({"fleet": {"kind": "kubernetes", "scale": {"min": 3, "max": 9}}}),
        ManifestValues(gateways=3, keda=True),
    ),
    "by hand": (json.dumps(KEYS), ManifestValues(gateways=2, engine_args=("engine", "--host", "::", "--slots", "16"))),
    "vllm": (
        json.dumps({"fleet": {"kind": "kubernetes", "kubernetes": {"port": 8000}}}),
        ManifestValues(
            engine_kind="vllm", engine_image="vllm/vllm-openai:v0.11.0", gpus=1, engine_args=("--model", "m")
        ),
    ),
}


def made(case: str) -> tuple[GatewayConfig, ManifestValues, list[dict[str, Any]]]:
    text, parts = CASES[case]
    config = parse(text, case)
    return config, parts, list(yaml.safe_load_all(kubernetes(config, parts, text)))


def only(found: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    (it,) = [
        one
        for one in found
        if one["kind"] == kind and one["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return it


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", ["1.27", "1.33"])
def test_every_manifest_is_what_the_official_schema_says(case: str, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    _, _, found = made(case)
    assert len(found) == 10
    for manifest in found:
        schemas.validate(manifest, version, strict=True)


def test_the_schemas_do_find_mistakes() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    broken = only(made("defaults")[2], "Deployment", "engine")
    broken["spec"]["template"]["spec"]["containers"][0]["port"] = 1
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, "1.33", strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_mounted_config_is_the_same_but_for_where_things_are(case: str) -> None:
    config, parts, found = made(case)
    inside = parse(only(found, "Secret", "gateway")["stringData"]["headgate.yaml"], "inside")
    assert inside.lanes == config.lanes
    assert inside.tenants == config.tenants
    assert inside.limits == config.limits
    assert inside.fleet.scale == config.fleet.scale
    assert inside.listen.host == "0.0.0.0"
    assert inside.fleet.kind == "kubernetes"
    assert inside.fleet.kubernetes.name == parts.engine_name == only(found, "Deployment", "engine")["metadata"]["name"]
    assert inside.fleet.kubernetes.scaled_here is parts.scaled_here
    assert not inside.replicas


def test_words_that_other_yaml_readers_take_for_numbers_and_truths_stay_words() -> None:
    text = "tenants: {no: {key_sha256: [%s], default_lane: off}}\nlanes: {off: {priority: 1, ttft_target_s: 1, gap_target_s: 1, weight: 2}}\n"  # noqa: E501
    text %= hash_key("k")
    config = parse(text, "x")
    again = parse(cluster_text(config, ManifestValues(), text), "y")
    assert again.tenants == config.tenants
    assert again.lanes == config.lanes


def test_the_role_allows_what_the_fleet_does_and_no_more() -> None:
    def allowed(parts: ManifestValues) -> set[tuple[str, str]]:
        rules = only(list(_flat(parts)), "Role", "gateway")["rules"]
        return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}

    found = {("pods", "get"), ("pods", "list"), ("pods", "watch"), ("deployments", "get"), ("statefulsets", "get")}
    scaled = {("pods", "patch"), ("pods", "delete")}
    scaled |= {(f"{it}/scale", verb) for it in ("deployments", "statefulsets") for verb in ("get", "patch")}
    assert allowed(ManifestValues()) == found | scaled
    assert allowed(ManifestValues(keda=True)) == found


def _flat(parts: ManifestValues) -> list[dict[str, Any]]:
    return [it for group in manifests(GatewayConfig(), parts).values() for it in group]


def test_selectors_ports_and_secrets_meet() -> None:
    config, _, found = made("example")
    for component in ("gateway", "engine"):
        deployment = only(found, "Deployment", component)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        assert only(found, "PodDisruptionBudget", component)["spec"]["selector"]["matchLabels"] == labels
    gateway, engine = (only(found, "Deployment", it) for it in ("gateway", "engine"))
    assert only(found, "Service", "gateway")["spec"]["selector"] == gateway["spec"]["template"]["metadata"]["labels"]
    policy = only(found, "NetworkPolicy", "engine")["spec"]
    assert policy["podSelector"]["matchLabels"] == engine["spec"]["template"]["metadata"]["labels"]
    assert policy["ingress"][0]["ports"][0]["port"] == config.fleet.kubernetes.port
    assert container(engine)["ports"][0]["containerPort"] == config.fleet.kubernetes.port
    volumes = gateway["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == only(found, "Secret", "gateway")["metadata"]["name"]
    assert {it["metadata"]["namespace"] for it in found} == {"llm"}
    assert container(engine)["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_pods_have_time_to_finish_what_they_have() -> None:
    config, _, found = made("defaults")
    for component, drain_s in (("gateway", config.listen.drain_s), ("engine", config.fleet.drain_s)):
        pod = only(found, "Deployment", component)["spec"]["template"]["spec"]
        waits_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] >= waits_s + 10
        assert pod["terminationGracePeriodSeconds"] >= drain_s


def test_who_says_how_many_engines_there_are() -> None:
    def replicas(case: str) -> Any:
        return only(made(case)[2], "Deployment", "engine")["spec"].get("replicas")

    assert replicas("defaults") is None  # the gateway: applying the file again must not undo it
    assert replicas("keda") is None
    assert replicas("by hand") == 1
    text, parts = CASES["by hand"]
    assert "none of them scales the engines" in kubernetes(parse(text, "x"), parts, text)


def test_without_keys_it_is_said_and_with_keys_it_is_not_insecure() -> None:
    open_to_all = only(made("defaults")[2], "Deployment", "gateway")
    assert "--insecure" in container(open_to_all)["args"]
    assert "whoever reaches the Service is served" in kubernetes(GatewayConfig(), ManifestValues())
    assert "--insecure" not in container(only(made("by hand")[2], "Deployment", "gateway"))["args"]


def test_an_engine_of_another_kind_is_asked_where_it_answers_and_started_as_its_image_is() -> None:
    engine = container(only(made("vllm")[2], "Deployment", "engine"))
    assert engine["image"] == "vllm/vllm-openai:v0.11.0"
    assert engine["args"] == ["--model", "m"]
    assert {engine[it]["httpGet"]["path"] for it in ("startupProbe", "readinessProbe", "livenessProbe")} == {"/health"}
    assert "securityContext" not in engine  # its user and its files are its maker's business
    with pytest.raises(StartupError, match=r"did you mean vllm\?"):
        checked(ManifestValues(engine_kind="vlm"))
    with pytest.raises(StartupError, match="--engine-image"):
        checked(ManifestValues(engine_kind="vllm"))


@pytest.mark.parametrize("bad", [{"name": "Upper"}, {"name": "x" * 60}, {"namespace": "a_b"}, {"name": ""}])
def test_names_that_kubernetes_would_refuse(bad: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="expected lowercase letters"):
        checked(ManifestValues(**bad))


def test_a_port_that_nobody_knows() -> None:
    with pytest.raises(StartupError, match=r"listen\.port is 0"):
        kubernetes(parse("listen: {port: 0}", "x"), ManifestValues())
    with pytest.raises(StartupError, match=r"listen\.uds.*listen\.port"):
        kubernetes(parse("listen: {uds: /run/h.sock}", "x"), ManifestValues())


# -- KEDA --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_scaled_object_is_what_the_custom_resource_says(case: str) -> None:
    """By models that are generated from KEDA's own custom resource definition."""
    models = pytest.importorskip(
        "cloudcoil.models.keda.v1alpha1", reason="no models of KEDA: pip install cloudcoil.models.keda"
    )
    text, parts = CASES[case]
    it = yaml.safe_load(keda(parse(text, case), parts))
    read = models.ScaledObject.model_validate(it)
    # Unknown fields would be dropped in silence, so all of it has to come back.
    back = json.loads(read.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
    assert back["spec"] == it["spec"]


def test_an_interactive_pool_never_goes_to_zero() -> None:
    to_zero = {"kind": "kubernetes", "scale": {"min": 0, "max": 4, "to_zero": True}}
    interactive = parse(json.dumps({"fleet": to_zero}), "x")
    assert scaled_object(interactive, ManifestValues())["spec"]["minReplicaCount"] == 1
    slow = {name: {"ttft_target_s": 120} for name in ("fast", "slow", "long")}
    batch = parse(json.dumps({"fleet": to_zero, "lanes": slow}), "x")
    assert scaled_object(batch, ManifestValues())["spec"]["minReplicaCount"] == 0


def test_it_scales_on_figures_that_the_gateway_has() -> None:
    """Both are for each replica, so the count follows their ratio to the target, and the larger one wins. What they
    answer is in test_shared_fleet.py."""
    config = parse(json.dumps({"fleet": {"kind": "kubernetes", "scale": {"queue_per_replica": 2.5, "max": 5}}}), "x")
    spec = scaled_object(config, ManifestValues(name="p"), "http://prom")["spec"]
    queue, use = spec["triggers"]
    names = {family.name for family in families()}
    for trigger in (queue, use):
        asked = set(re.findall(r"headgate_\w+", trigger["metadata"]["query"]))
        assert asked
        assert asked <= names
    assert (queue["metadata"]["threshold"], use["metadata"]["threshold"]) == ("2.5", "0.65")
    assert queue["metricType"] == use["metricType"] == "Value"
    assert spec["scaleTargetRef"]["name"] == "p-engine"
    assert spec["maxReplicaCount"] == 5
    assert "scaled_here to false" in keda(config, ManifestValues())
