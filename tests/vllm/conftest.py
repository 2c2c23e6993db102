"""Only with a vLLM: `make test-vllm`. Without one these tests are named among those that did not run."""

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("HEADGATE_VLLM"):
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="no vLLM: make test-vllm installs its CPU build"))
