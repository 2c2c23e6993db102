"""Only with a vLLM: `make test-vllm`. Without one these tests are named among those that did not run. Those in doubles/
need none."""

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("HEADGATE_VLLM"):
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here) and not item.path.is_relative_to(here / "doubles"):
                item.add_marker(pytest.mark.skip(reason="no vLLM: make test-vllm installs its CPU build"))
