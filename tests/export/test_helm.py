"""The chart, rendered by Helm's own code (helm-python-sdk): the same manifests as `export kubernetes` prints."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.export.helm import chart, write_chart
from headgate.export.keda import scaled_object
from headgate.export.kubernetes import ManifestValues, manifests
from headgate.model.errors import StartupError

pytestmark = pytest.mark.timeout(60)
SYSTEM = json.dumps({"warm": {"system_prompts": ["Say {{ nothing }} of ${this}."]}})


VLLM = ManifestValues(engine_kind="vllm", engine_image="vllm/vllm-openai:v0.11.0", gpus=1, engine_args=("--model", "m"))


def render(folder: Path, values: dict[str, Any] | None = None, name: str = "headgate") -> list[dict[str, Any]]:
    helm = pytest.importorskip("helm_python", reason="no Helm: pip install helm-python-sdk")
    loaded = helm.Chart.load(folder)
    try:
        loaded.validate_schema(values)
        rendered = loaded.render(values, name=name, namespace="prod")
    finally:
        loaded.close()
    found = [it for path, text in rendered.items() if path.endswith(".yaml") for it in yaml.safe_load_all(text) if it]
    return found


def key(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def plain(config: GatewayConfig, parts: ManifestValues, text: str = "") -> list[dict[str, Any]]:
    return [it for group in manifests(config, parts, text).values() for it in group]


def deployment(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(it for it in found if key(it) == ("Deployment", name))


def inside(found: list[dict[str, Any]]) -> GatewayConfig:
    return parse(next(it for it in found if it["kind"] == "Secret")["stringData"]["headgate.yaml"], "inside")


@pytest.mark.parametrize(
    "parts",
    [ManifestValues(), ManifestValues(name="prod", image="registry.test:5000/h:7", gpus=1), VLLM],
    ids=["default", "own", "vllm"],
)
def test_it_renders_to_the_very_manifests_that_are_printed(tmp_path: Path, parts: ManifestValues) -> None:
    write_chart(GatewayConfig(), parts, tmp_path / "chart")
    found = render(tmp_path / "chart", name=parts.name)
    assert sorted(found, key=key) == sorted(plain(GatewayConfig(), parts), key=key)


def test_helms_own_lint_has_nothing_to_say(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="no Helm: pip install helm-python-sdk")
    write_chart(GatewayConfig(), ManifestValues(), tmp_path / "headgate")
    report = helm.lint(tmp_path / "headgate", strict=True)
    assert report["errors"] == []
    assert [it for it in report["messages"] if it["severity"] > 1] == []


def test_keda_in_the_chart(tmp_path: Path) -> None:
    write_chart(GatewayConfig(), ManifestValues(), tmp_path)
    found = render(tmp_path, {"keda": {"enabled": True, "max": 20}, "gateway": {"replicas": 3}})
    made = next(it for it in found if it["kind"] == "ScaledObject")
    expected = scaled_object(GatewayConfig(), ManifestValues())
    expected["spec"]["maxReplicaCount"] = 20
    assert made == expected
    assert "replicas" not in deployment(found, "headgate-engine")["spec"]
    assert deployment(found, "headgate")["spec"]["replicas"] == 3
    assert not inside(found).fleet.kubernetes.scaled_here


def test_more_gateways_without_keda_leave_the_engines_alone(tmp_path: Path) -> None:
    write_chart(GatewayConfig(), ManifestValues(), tmp_path)
    found = render(tmp_path, {"gateway": {"replicas": 2}, "engine": {"replicas": 5}})
    assert deployment(found, "headgate-engine")["spec"]["replicas"] == 5
    assert not inside(found).fleet.kubernetes.scaled_here


def test_values_reach_the_pods(tmp_path: Path) -> None:
    write_chart(GatewayConfig(), ManifestValues(), tmp_path)
    engine = {
        "args": ["engine", "--slots", "16", "--model", "/models/a b.gguf"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "image": {"repository": "own"},
    }
    found = render(tmp_path, {"engine": engine, "image": {"tag": "9"}}, name="r")
    pod = deployment(found, "r-engine")["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    assert one["args"] == engine["args"]
    assert one["image"] == "own:9"
    assert one["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == engine["tolerations"]
    assert inside(found).fleet.kubernetes.name == "r-engine"


def test_the_schema_refuses_what_is_not_a_value(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="no Helm: pip install helm-python-sdk")
    write_chart(GatewayConfig(), ManifestValues(), tmp_path)
    wrong: list[dict[str, Any]] = [{"engin": {}}, {"gateway": {"replicas": 0}}, {"config": 7}]
    for values in wrong:
        with pytest.raises(helm.HelmValuesError):
            render(tmp_path, values)


def test_what_looks_like_a_template_in_the_config_is_none(tmp_path: Path) -> None:
    config = parse(SYSTEM, "x")
    write_chart(config, ManifestValues(), tmp_path, SYSTEM)
    assert inside(render(tmp_path)).warm.system_prompts == config.warm.system_prompts


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StartupError, match="not empty and no chart"):
        write_chart(GatewayConfig(), ManifestValues(), tmp_path)
    assert [it.name for it in tmp_path.iterdir()] == ["thesis.txt"]
    first = write_chart(GatewayConfig(), ManifestValues(), tmp_path / "new")
    assert write_chart(GatewayConfig(), ManifestValues(), tmp_path / "new") == first


def test_expressions_are_closed_in_every_template() -> None:
    """What can be said of the templates without Helm."""
    for path, text in chart(GatewayConfig(), ManifestValues()).items():
        assert "⟦" not in text, path
        assert text.count("{{") == text.count("}}"), path
        blocks = text.count("{{- if") + text.count("{{- with") + text.count("{{- range") + text.count("{{- define")
        assert blocks == text.count("{{- end"), path
