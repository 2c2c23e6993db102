"""`vllm bench serve`, by the module behind the command: chats and text completions of random words."""

import argparse
import json
import tempfile
from pathlib import Path

from checks import MODEL, URL, check, main
from tokenizer import save_tokenizer

PROMPTS = 6


def ran(backend: str, endpoint: str) -> dict[str, float]:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench

    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(f"{folder}/tokenizer")
        parser = argparse.ArgumentParser()
        add_cli_args(parser)
        words = [
            *("--backend", backend, "--base-url", URL, "--endpoint", endpoint, "--model", MODEL),
            *("--tokenizer", f"{folder}/tokenizer", "--dataset-name", "random", "--random-input-len", "20"),
            *("--random-output-len", "8", "--num-prompts", str(PROMPTS), "--save-result", "--result-dir", folder),
            *("--result-filename", "result.json"),
        ]
        bench(parser.parse_args(words))
        found: dict[str, float] = json.loads(Path(folder, "result.json").read_text())
        return found


@check
def chats() -> None:
    assert ran("openai-chat", "/v1/chat/completions")["completed"] == PROMPTS


@check
def text_completions() -> None:
    assert ran("openai", "/v1/completions")["completed"] == PROMPTS


main()
