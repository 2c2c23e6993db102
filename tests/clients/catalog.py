"""Lists the clients that are tried against Headgate: what is installed for each, and the script that drives it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "scripts"
INSTALLED: Final = ROOT / ".bench" / "clients"
"""Each client is in an environment of its own below it: they want different versions of the same packages."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    packages: tuple[str, ...]
    script: str
    node: bool = False
    """A client for Node.js, installed by npm."""

    @property
    def folder(self) -> Path:
        return INSTALLED / self.name

    @property
    def command(self) -> list[str]:
        """What runs the script; its first word is there once the client is installed."""
        if self.node:
            return ["node", str(SCRIPTS / self.script)]
        return [str(self.folder / "bin" / "python"), str(SCRIPTS / self.script)]

    @property
    def is_installed(self) -> bool:
        return (self.folder / ".installed").exists()


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("openai", ("openai",), "openai_sdk.py"),
        Client("anthropic", ("anthropic",), "anthropic_sdk.py"),
        Client("litellm", ("litellm", "mcp"), "litellm_sdk.py"),
    )
}
IN_CI: Final = ("openai", "anthropic", "litellm")
"""Those that every run of all tests tries: small, and the ones on which most others are built."""
