"""Several pools on Kubernetes: manifests, chart and ScaledObjects of each; what they can't express is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.export.engine_pools import engine_words
from headgate.export.fleet_figures import utilisation, waiting_per_replica
from headgate.export.helm import chart, write_chart
from headgate.export.keda import keda, scaled_object
from headgate.export.kubernetes import ManifestValues, cluster_text, kubernetes, manifests
from headgate.model.errors import UsageError
from tests.export.test_helm import inside, key, plain, render

TEXT = json.dumps(
    {
        "fleet": {
            "pools": [
                {"name": "fast", "model": "m", "lanes": ["fast"], "scale": {"min": 2, "max": 6, "warm": 1},
                 "tags": {"gpu_type": "h100"}, "kubernetes": {"nodes": {"gpu": "h100"}}, "kind": "kubernetes"},
                {"name": "long", "model": "m", "lanes": ["long"], "drain_s": 90,
                 "engine": {"slots": 2, "context": 32768}},
                {"name": "batch", "model": "m", "lanes": ["batch"], "scale": {"min": 0, "to_zero": True},
                 "emulate": {"profile": "h100-llama3-8b", "slots": 8}},
            ]
        }
    }
)  # fmt: skip
CONFIG = parse(TEXT, "x")
NAMES = ["fast", "long", "batch"]


def made(parts: ManifestValues = ManifestValues()) -> list[dict[str, Any]]:  # noqa: B008
    return list(yaml.safe_load_all(kubernetes(CONFIG, parts, TEXT)))


def of(found: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """By the name of the pool; the gateway's by an empty one."""
    return {it["metadata"]["labels"].get("headgate/pool", ""): it for it in found if it["kind"] == kind}


@pytest.mark.parametrize("version", ["1.27", "1.33"])
def test_manifests_of_three_pools_are_what_the_official_schemas_say(version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    found = made(ManifestValues(namespace="llm", gateways=2, gpus=1))
    assert len(found) == 16
    for manifest in found:
        schemas.validate(manifest, version, strict=True)


def test_each_pool_has_a_deployment_a_selector_a_budget_and_a_policy_of_its_own() -> None:
    found = made()
    deployments = of(found, "Deployment")
    assert list(deployments) == ["", *NAMES]
    selectors = [deployments[name]["spec"]["selector"]["matchLabels"] for name in NAMES]
    assert len({json.dumps(one) for one in selectors}) == 3
    for name, selector in zip(NAMES, selectors, strict=True):
        assert deployments[name]["metadata"]["name"] == f"headgate-engine-{name}"
        assert deployments[name]["spec"]["template"]["metadata"]["labels"] == selector
        assert of(found, "PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"] == selector
        assert of(found, "NetworkPolicy")[name]["spec"]["podSelector"]["matchLabels"] == selector
    fast, long, batch = (deployments[name]["spec"]["template"]["spec"] for name in NAMES)
    assert fast["nodeSelector"] == {"gpu": "h100"}
    assert long["terminationGracePeriodSeconds"] == 105
    words = " ".join(long["containers"][0]["args"])
    assert "--slots 2" in words
    assert "--context 32768" in words
    assert "--model-name m" in words
    assert "--emulate h100-llama3-8b" in " ".join(batch["containers"][0]["args"])
    counts = of(made(ManifestValues(gateways=2)), "Deployment")
    assert [counts[name]["spec"]["replicas"] for name in NAMES] == [3, 2, 1]


def test_the_mounted_config_finds_the_pods_of_every_pool() -> None:
    found = parse(of(made(), "Secret")[""]["stringData"]["headgate.yaml"], "inside").fleet.pools
    assert [pool.kubernetes.name for pool in found] == [f"headgate-engine-{name}" for name in NAMES]
    assert all(pool.kind == "kubernetes" and pool.kubernetes.scaled_here for pool in found)
    assert [(pool.scale, pool.lanes, pool.tags) for pool in found] == [
        (pool.scale, pool.lanes, pool.tags) for pool in CONFIG.fleet.pools
    ]
    assert [pool.served_as for pool in found] == [None, None, "emulated-h100-llama3-8b"]


def test_the_chart_renders_to_the_very_manifests_that_are_printed(tmp_path: Path) -> None:
    write_chart(CONFIG, ManifestValues(), tmp_path, TEXT)
    assert sorted(render(tmp_path), key=key) == sorted(plain(CONFIG, ManifestValues(), TEXT), key=key)
    values = {"gateway": {"replicas": 2}, "pools": {"long": {"replicas": 7, "nodeSelector": {"gpu": "a100"}}}}
    found = of(render(tmp_path, values), "Deployment")
    assert [found[name]["spec"]["replicas"] for name in NAMES] == [3, 7, 1]
    assert found["long"]["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}
    scaled = render(tmp_path, {"keda": {"enabled": True}, "pools": {"fast": {"max": 20}}}, name="r")
    objects = {it["metadata"]["name"]: it["spec"] for it in scaled if it["kind"] == "ScaledObject"}
    assert {name: one["maxReplicaCount"] for name, one in objects.items()} == {
        "r-engine-fast": 20, "r-engine-long": 8, "r-engine-batch": 8,
    }  # fmt: skip
    assert not any(pool.kubernetes.scaled_here for pool in inside(scaled).fleet.pools)


def test_helms_own_lint_has_nothing_to_say_about_pools(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="no Helm: pip install helm-python-sdk")
    write_chart(CONFIG, ManifestValues(), tmp_path / "headgate", TEXT)
    report = helm.lint(tmp_path / "headgate", strict=True)
    assert report["errors"] == []
    with pytest.raises(helm.HelmValuesError):
        render(tmp_path / "headgate", {"pools": {"fats": {"replicas": 1}}})


def test_keda_scales_each_pool_by_its_own_figures() -> None:
    found = list(yaml.safe_load_all(keda(CONFIG, ManifestValues(keda=True))))
    assert [it["spec"]["scaleTargetRef"]["name"] for it in found] == [f"headgate-engine-{name}" for name in NAMES]
    assert [(it["spec"]["minReplicaCount"], it["spec"]["maxReplicaCount"]) for it in found] == [(3, 6), (2, 8), (0, 8)]
    for name, it in zip(NAMES, found, strict=True):
        queries = [trigger["metadata"]["query"] for trigger in it["spec"]["triggers"]]
        assert queries == [waiting_per_replica(name), utilisation(name)]
        assert all(f'pool="{name}"' in query for query in queries)
    assert "scaled_here of each pool to false" in keda(CONFIG, ManifestValues(keda=True))
    assert scaled_object(CONFIG, ManifestValues())["metadata"]["name"] == "headgate-engine-fast"
    assert "templates/engine-long.yaml" in chart(CONFIG, ManifestValues(), TEXT)


def said(text: str, parts: ManifestValues = ManifestValues()) -> str:  # noqa: B008
    with pytest.raises(UsageError) as caught:
        manifests(parse(text, "x"), parts, text)
    return str(caught.value)


def test_replicas_are_kept_where_a_pod_reaches_them_and_refused_in_words_where_not() -> None:
    text = "replicas: [{url: 'http://10.0.0.7:8000', lanes: [batch]}]"
    config = parse(text, "x")
    assert parse(cluster_text(config, ManifestValues(), text), "y").replicas == config.replicas
    assert "does not reach unix:/x.sock" in said("replicas: [{url: 'unix:/x.sock'}]")
    assert "replicas[1].url: a pod of the gateway does not reach http://127.0.0.1:8000" in said(
        "replicas: [{url: 'http://a:1'}, {url: 'http://127.0.0.1:8000'}]"
    )
    assert "replicas[0]: its api_key_file and ca" in said("replicas: [{url: 'http://a:1', api_key_file: /k}]")
    with pytest.raises(UsageError, match="does not reach"):
        keda(parse("replicas: [{url: 'unix:/x.sock'}]", "x"), ManifestValues())


VLLM = ManifestValues(engine_kind="vllm", engine_image="vllm/vllm-openai:v0.11.0")


@pytest.mark.parametrize(
    ("fleet", "why", "parts"),
    [
        ("{kind: processes, vllm: {model: m}}", "fleet.vllm: say which image has vLLM", ManifestValues()),
        ("{kind: processes, vllm: {model: m}}", "fleet.vllm: its image has no Headgate in it", VLLM),
        ("{kind: processes, emulate: {profile: h100-llama3-8b}}", "for Headgate's own engine, not for vllm", VLLM),
        ("{kind: kubernetes, kubernetes: {workload: StatefulSet}}", "workload: manifests have Dep", ManifestValues()),
        ("{kind: kubernetes, kubernetes: {selector: app=x}}", "selector: manifests have labels", ManifestValues()),
        ("{kind: kubernetes, kubernetes: {scheme: https}}", "scheme: engines in manifests", ManifestValues()),
        ("{kind: kubernetes, kubernetes: {api: 'http://x:1'}}", "uses its service account", ManifestValues()),
        ("{kind: kubernetes, kubernetes: {namespace: b}}", "--namespace b", ManifestValues(namespace="a")),
        ("{kind: kubernetes, access: {api_key_file: /k}}", "fleet.access: api_key_file", ManifestValues()),
        ("{kind: ray}", "fleet.kind: a Ray cluster starts", ManifestValues()),
        ("{pools: [{name: a, kind: ray}]}", "fleet.pools[0].kind: a Ray cluster", ManifestValues()),
        ("{pools: [{name: a, kind: kubernetes, kubernetes: {name: b}}]}", "name the workload after", ManifestValues()),
    ],
)  # fmt: skip
def test_what_manifests_cannot_express_is_refused_in_words(fleet: str, why: str, parts: ManifestValues) -> None:
    assert why in said(f"fleet: {fleet}", parts)


def test_a_pool_of_vllm_gets_vllms_own_command_line() -> None:
    text = "fleet: {pools: [{name: a, model: m, vllm: {model: org/x, scheduler: false, flags: ['--seed', '1']}}]}"
    (pool,) = parse(text, "x").fleet.pools
    words = engine_words(GatewayConfig(), pool, "vllm")
    assert words == ["--model", "org/x", "--port", "8001", "--served-model-name", "m", "--seed", "1"]
    assert manifests(parse(text, "x"), VLLM, text)
