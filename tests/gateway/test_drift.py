"""A replica that is slower than its profile says is told by doctor."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.config import file as config_file
from headgate.model.errors import UsageError
from headgate.surface.drift import profiles_of
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import eventually, gateway


@pytest.mark.timeout(60)
def test_doctor_tells_a_replica_that_is_slower_than_its_profile(tmp_path: Path) -> None:
    slow = ("engine", "--emulate", "h100-llama3-8b", "--dilate", "2", "--port", "0")
    config: dict[str, Any] = {"observe": {"profiles": {"any": "h100-llama3-8b"}}}
    with headgate(*slow) as (_, engine), gateway(tmp_path, config, engine) as url:
        body = {"model": "default", "prompt": "hello", "max_tokens": 10, "stream": True, "ignore_eos": True}
        for _ in range(32):
            assert ask(f"{url}/v1/completions", body)[0] == 200

        def told() -> list[dict[str, Any]]:
            found = json.loads(ask(f"{url}/admin/doctor")[1])["findings"]
            return [one for one in found if one["figure"] == "profile"]

        eventually(lambda: bool(told()), 20)
        assert "times as long as its profile h100-llama3-8b says" in told()[0]["cause"]
        assert told()[0]["evidence"]["ratio"] > 1.5


def test_a_profile_that_is_not_known_is_said_before_anything_starts() -> None:
    config = config_file.parse("observe: {profiles: {any: h900}}", "f", {})
    with pytest.raises(UsageError, match="no profile 'h900'"):
        profiles_of(config.observe)
