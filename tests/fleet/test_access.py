"""What the pods of a fleet require goes with all they are asked, and a file that can't be used is found early."""

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.config import file as config_file
from headgate.model.errors import StartupError
from headgate.wiring.fleet import _launched

KUBERNETES = """
fleet:
  kind: kubernetes
  kubernetes: {name: vllm, port: 8000, api: "http://127.0.0.1:1", namespace: x}
  access: {api_key_file: KEY, headers: {x-team: blue}}
"""


def test_pods_get_the_key_and_the_headers(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret-123456")
    config = config_file.parse(KUBERNETES.replace("KEY", str(key)), "f", {})
    _, spec = _launched(config, config.fleet.every[0], tmp_path, lambda: 0.0)
    replica = spec.replica("pod-1", "http://10.0.0.1:8000")
    assert (replica.api_key_file, replica.headers, replica.ca) == (key, {"x-team": "blue"}, None)
    assert replica.kind is None
    assert "blue" not in repr(spec) + repr(replica) + repr(config.fleet)


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        ("{kind: processes, access: {headers: {a: b}}}", "fleet.access: expected nothing with kind processes"),
        ("{kind: kubernetes, access: {headers: {host: b}}}", "fleet.access.headers: host is written with every"),
        ("{kind: kubernetes, access: {ca: /ca.pem}}", "fleet.access.ca: expected an https address"),
    ],
)
def test_what_contradicts_is_refused_in_words(fleet: str, problem: str) -> None:
    with pytest.raises(StartupError) as caught:
        config_file.parse(f"fleet: {fleet}", "f", {})
    assert problem in str(caught.value)


def test_a_key_file_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(KUBERNETES.replace("KEY", "/nowhere/key"))
    command = [sys.executable, "-m", "headgate", "serve", "--check", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "can't read its api_key_file /nowhere/key" in done.stderr
