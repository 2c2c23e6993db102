"""Only with a vLLM: `make test-vllm`."""

import os

collect_ignore_glob = [] if os.environ.get("HEADGATE_VLLM") else ["test_*.py"]
