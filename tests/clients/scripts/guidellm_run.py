"""GuideLLM as its command: chats at a steady concurrency, with prompts made by a tokenizer of a few words."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, URL, check, main
from tokenizer import save_tokenizer

REQUESTS = 6


@check
def a_run_in_which_every_request_succeeds() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(f"{folder}/tokenizer")
        command = [
            *(str(Path(sys.executable).with_name("guidellm")), "run", "--disable-progress"),
            *("--backend", f"kind=openai_http,target={URL},model={MODEL}"),
            *("--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--tokenizer", f"kind=hf_auto,model={folder}/tokenizer"),
            *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8"),
            *("--output", f"kind=json,path={folder}/out.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        report = json.loads(Path(folder, "out.json").read_text())
        totals = report["benchmarks"][0]["metrics"]["request_totals"]
        assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals


main()
