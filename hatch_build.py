"""Compiles what every request passes through, with mypyc, into a wheel for this platform.

Asked for with HEADGATE_COMPILE=1; without it the wheel is pure Python. docs/decisions/0007 says what it is worth. What
is built says which sources it was built of (src/headgate/compiled.py), so that nobody edits a module and runs another.
"""

import hashlib
import os
import re
import shutil
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOT = {
    "engine/torch": "pages",
    "explain": "neighbours",
    "gateway": "account gateway placing",
    "gateway/answer": "backlog bounded continuation phases relay relayed transcript",
    "gateway/intake": "accept asks promised prompt responses",
    "gateway/worker": "brain_port frames hands sessions",
    "machine": "step_features",
    "measure": "edges evidence figures little series tenants windows",
    "metrics": "exposition histogram",
    "model": "dialect lane pace quantile replica request sampling sequence step tier",
    "policy/answers": "grown output repeat_kind runaway sizes",
    "policy/batching": "admission batch blocks chunks commitment estimate holders ledger move_time output_length paged"
    " speculate urgency",
    "policy/dispatch": "admit dispatcher hedge intake passage port prefills queues quoting races reads retry sending"
    " turns versions",
    "policy/promises": "promise quotes",
    "policy/replicas": "allowance book entry full gradient health index outlier prefix_index route session_ring signs"
    " sleepers",
    "policy/tenants": "fair limits shared_limits standing_room",
    "replica": "call connection dialects http openai sse",
    "sim": "chains fleet gateway intake longest memory pace replica service watch world",
    "wire": "captured connection errors exchange handshake limits message origin places protocol reader router state"
    " websocket",
    "wire/body": "canonical",
}
"""Modules on the path of a request. None that defines a msgspec Struct to decode into: mypyc does not keep the types of
its fields, which msgspec needs. Nor wire/body/json.py: what is parsed aside from the loop must let the loop run."""


MISREAD = re.compile(r"\.f\d+ != \S+ && PyErr_Occurred\(\)")
"""What mypyc 2.4.1 writes for "not an error" where a tuple begins with a float: never true, while nothing failed."""
PYTHON = sys.implementation.cache_tag
"""Each Python has its own."""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or os.environ.get("HEADGATE_COMPILE") != "1":
            return
        root = Path(self.root)
        for path, name in compiled(root / "src", root / "build" / PYTHON).items():
            build_data["force_include"][str(path)] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compiled(source: Path, out: Path) -> dict[Path, str]:
    """Extension modules and the stamp that says of which sources they are; to each its place in the wheel."""
    sys.path.insert(0, str(source))
    from headgate.compiled import STAMP, stamp_of

    package, lib = source / "headgate", out / "lib"
    stamp = stamp_of(package)
    # What there is to compile, and how: pip may ask for the wheel twice, and a changed style sheet needs no compiler.
    key = stamp_of(package, ".py") + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if not (lib / "key").is_file() or (lib / "key").read_text() != key:
        shutil.rmtree(lib, ignore_errors=True)
        os.chdir(source.parent)
        compile_into(lib, package, out)
        if stamp_of(package) != stamp:
            raise RuntimeError("the sources were changed while they were compiled; build again")
        (lib / "key").write_text(key)
    (lib / STAMP).write_text(stamp)
    return {path: str(path.relative_to(lib)) for path in lib.rglob("*.so")} | {lib / STAMP: f"headgate/{STAMP}"}


def compile_into(lib: Path, package: Path, out: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Parallel(build_ext):  # type: ignore[misc]
        """Compiles the files of one extension at once: setuptools would take one after the other."""

        def build_extensions(self) -> None:
            compile_files = self.compiler.compile

            def compile_at_once(sources: list[str], *arguments: Any, **options: Any) -> list[str]:
                with ThreadPool(os.cpu_count()) as pool:
                    made = pool.map(lambda one: compile_files([one], *arguments, **options), sources, chunksize=1)
                return [name for names in made for name in names]

            self.compiler.compile = compile_at_once
            super().build_extensions()

    files = [str(package / folder / f"{name}.py") for folder, names in HOT.items() for name in names.split()]
    extensions = mypycify(
        files, group_name="headgate", opt_level="2", debug_level="0", multi_file=True, target_dir=str(out / "c")
    )
    for extension in extensions:
        for file in extension.sources:
            if MISREAD.search(Path(file).read_text()):
                raise RuntimeError(f"{file} takes a tuple of floats for an error: make each a constant of its own")
        extension.extra_compile_args.append("-fvisibility=hidden")  # calls from file to file as cheap as within one
    command: Any = Parallel(Distribution({"name": "headgate", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(lib), str(out / "temp")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    root = Path(__file__).resolve().parent
    print(*compiled(root / "src", root / "build" / PYTHON), sep="\n", file=sys.stderr)
