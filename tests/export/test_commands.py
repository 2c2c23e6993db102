"""`headgate export …`: every kind prints something for a config of one's own, and says what is wrong with one."""

from pathlib import Path

import pytest
import yaml

from headgate.__main__ import app
from headgate.model.errors import StartupError


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    app(["export", *words], result_action="return_value")
    return capsys.readouterr().out


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "headgate.yaml"
    path.write_text("listen: {port: 9123}\nembedded: {slots: 16}\nretry: {attempts: 1}\n")
    return str(path)


def test_what_stands_in_front(capsys: pytest.CaptureFixture[str], config: str) -> None:
    assert "server 127.0.0.1:9123;" in printed(capsys, "nginx", "--config", config)
    several = printed(capsys, "nginx", "--gateway", "10.0.0.7:1", "--gateway", "[fd00::8]:2", "--listen", "8443")
    assert "server 10.0.0.7:1;\n    server [fd00::8]:2;" in several
    assert "listen 8443;" in several
    envoy = yaml.safe_load(printed(capsys, "envoy", "--config", config, "--listen", "7000"))
    assert envoy["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] == 7000
    assert (
        yaml.safe_load(printed(capsys, "alb", "--config", config))["Resources"]["Gateways"]["Properties"]["Port"]
        == 9123
    )
    tunnel = yaml.safe_load(printed(capsys, "cloudflare", "--config", config, "--name", "llm.test"))
    assert tunnel["ingress"][0]["hostname"] == "llm.test"


def test_envoy_with_a_picker_knows_the_replicas_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("replicas: [{url: http://10.0.0.7:8000}, {url: 'http://[fd00::8]:9000/'}]\n")
    made = yaml.safe_load(printed(capsys, "envoy", "--config", str(path), "--picker", "10.0.0.5:9002", "--full"))
    replicas, picker = made["static_resources"]["clusters"]
    addresses = [
        place["endpoint"]["address"]["socket_address"]
        for cluster in (replicas, picker)
        for place in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert [(one["address"], one["port_value"]) for one in addresses] == [
        ("10.0.0.7", 8000), ("fd00::8", 9000), ("10.0.0.5", 9002),
    ]  # fmt: skip
    secure = tmp_path / "tls.yaml"
    secure.write_text("replicas: [{url: https://10.0.0.7}]\n")
    for config, message in ((secure, "plain HTTP replicas only"), (None, "needs replicas in the config")):
        given = ["--config", str(config)] if config else []
        with pytest.raises(StartupError, match=message):
            app(["export", "envoy", "--picker", "a:1", *given], result_action="return_value")


def test_clusters(capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path) -> None:
    """What the config says of the embedded engine is what the engines' pods are told."""
    made = list(yaml.safe_load_all(printed(capsys, "kubernetes", "--config", config, "--name", "llm", "--gpus", "2")))
    engine = next(it for it in made if it["kind"] == "Deployment" and it["metadata"]["name"] == "llm-engine")
    (container,) = engine["spec"]["template"]["spec"]["containers"]
    assert container["args"][container["args"].index("--slots") + 1] == "16"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    scaled = yaml.safe_load(printed(capsys, "keda", "--prometheus", "http://p:9090", "--name", "llm"))
    assert scaled["spec"]["triggers"][0]["metadata"]["serverAddress"] == "http://p:9090"
    said = printed(capsys, "helm", str(tmp_path / "chart"), "--config", config)
    assert "helm install headgate" in said
    values = yaml.safe_load((tmp_path / "chart" / "values.yaml").read_text())
    assert values["engine"]["args"] == [*container["args"]]
    vllm = ["--engine", "vllm", "--engine-image", "v:1", "--engine-arg=--model", "--engine-arg=m"]
    assert "- --model\n" in printed(capsys, "kubernetes", *vllm)


def test_what_is_wrong_is_said(config: str, tmp_path: Path) -> None:
    wrong = {
        "expected host:port": ["nginx", "--gateway", "nowhere"],
        "expected a host name": ["nginx", "--name", "a;b"],
        "expected lowercase": ["kubernetes", "--name", "Upper"],
        "say which image": ["kubernetes", "--engine", "vllm"],
        "headgate init. writes a config": ["envoy", "--config", str(tmp_path / "none.yaml")],
    }
    for message, words in wrong.items():
        with pytest.raises(StartupError, match=message):
            app(["export", *words], result_action="return_value")
