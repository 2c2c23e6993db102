"""Compiles what every request passes through, with mypyc, into a wheel for this platform.

The same sources run interpreted everywhere else: tests, `make test` and an editable install never see what is built
here, so that nobody edits a module and runs another. Asked for with HEADGATE_COMPILE=1; docs/decisions/0007 says what
it is worth.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOT = {
    "model": "lane quantile replica request sampling sequence step tier",
    "policy": "admit affinity allowance batch blocks dispatcher estimate fair fleet full gradient health hedge holders"
    " lanes limits members neighbours outlier output passage prefills prompt_size retry route runaway shape"
    " shared_limits speculate standing turns urgency",
    "wire": "canonical errors exchange limits message outbox protocol reader router websocket",
    "replica": "connection dialects http openai sse",
    "gateway": "accept account backlog bounded continuation gateway identity output relay",
    "observe": "evidence exposition figures histogram little series windows",
    "sim": "autoscale_signals chains fleet gateway intake longest replica service watch world",
}
"""Modules on the path of a request. None that defines a msgspec Struct to decode into: mypyc does not keep the types of
its fields, which msgspec needs. Nor wire/json.py: what is parsed aside from the loop must let the loop run."""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or os.environ.get("HEADGATE_COMPILE") != "1":
            return
        folder = Path(self.root) / "build"
        for library in compiled(Path(self.root) / "src", folder):
            build_data["force_include"][str(library)] = str(library.relative_to(folder / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compiled(source: Path, out: Path) -> list[Path]:
    """Extension modules, laid out as they go into the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(source.parent)
    files = [
        str(source / "headgate" / package / f"{name}.py") for package, names in HOT.items() for name in names.split()
    ]
    made = [*(out / "lib").rglob("*.so")]
    newest = max(Path(file).stat().st_mtime for file in (*files, __file__))
    if made and min(path.stat().st_mtime for path in made) > newest:
        return made  # pip asks twice, for the metadata and for the wheel, and a compiler takes a minute each time
    shutil.rmtree(out / "lib", ignore_errors=True)
    extensions = mypycify(files, group_name="headgate", opt_level="2", target_dir=str(out / "c"))
    command: Any = Distribution({"name": "headgate", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(out / "lib"), str(out / "temp")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return [Path(path) for path in command.get_outputs()]


if __name__ == "__main__":
    root = Path(__file__).resolve().parent
    print(*compiled(root / "src", root / "build"), sep="\n", file=sys.stderr)
