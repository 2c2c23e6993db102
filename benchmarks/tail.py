"""Whether the interactive tail stays flat while the load grows past what the fleet can do.

Four emulated engines, a mix of short interactive requests, bursty code completions, long documents and batch, offered
at 0.5 to 3 times what the engines can do, through Headgate, nginx, sglang-router and vllm-router in turn. README.md
beside this file says what each figure means. Each point is kept as soon as it is there: `--resume` goes on.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, os.environ.get("HEADGATE_COMPILED") or str(Path(__file__).resolve().parents[1] / "build/compiled"))
from benchmarks.gateway_peers import installed
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import CpuTime, Facts, Report, machine, verdict_grid
from benchmarks.tail_figures import OURS, figures, grids, lane_figures, verdicts
from benchmarks.tail_load import DRAIN_S, Point, measure, take_precedence
from benchmarks.tail_mix import INTERACTIVE, SEED, SETUPS, Setup, shares
from benchmarks.tail_picture import draw
from benchmarks.tail_site import NAMES

LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
REAL_LOADS = (0.8, 1.5, 2.0)
GATEWAYS = ("headgate", "nginx", "sglang", "vllm")
REAL_GATEWAYS = ("headgate", "nginx")
QUICK_S = 15.0
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "tail.svg"
KEPT = ROOT / ".bench" / "tail"
"""Where points lie, request by request, until they are judged together."""
TITLE = "The interactive tail under load"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", help="times the fleet's capacity, such as 0.8,2")
    parser.add_argument("--gateways", help=f"some of {','.join(GATEWAYS)}")
    parser.add_argument("--seconds", type=float, help="of arrivals, for each point")
    parser.add_argument("--out", type=Path, help="JSON file of the result; beside it .md, and .svg if it is not ours")
    parser.add_argument("--points", type=Path, help="folder of the points")
    parser.add_argument("--resume", action="store_true", help="keep the points that are there")
    parser.add_argument("--judge", action="store_true", help="measure nothing: judge and draw what is there")
    parser.add_argument("--quick", action="store_true", help="a check: 15 s at 0.8 and 2 times capacity")
    parser.add_argument("--real", action="store_true", help="the embedded engine, at small scale")
    args = parser.parse_args()
    args.loads = _numbers(parser, args.loads) or ((0.8, 2.0) if args.quick else REAL_LOADS if args.real else LOADS)
    args.gateways = tuple(args.gateways.split(",")) if args.gateways else REAL_GATEWAYS if args.real else GATEWAYS
    if unknown := set(args.gateways) - set(GATEWAYS):
        parser.error(f"no such gateway: {', '.join(sorted(unknown))}")
    name = "real" if args.real else "emulated"
    args.seconds = args.seconds or (QUICK_S if args.quick else SETUPS[name].seconds)
    args.points = args.points or KEPT / (f"{name}-quick" if args.quick else name)
    if args.out is None and not args.quick:
        args.out = RESULTS / ("tail_real.json" if args.real else "tail.json")
    return args


def _numbers(parser: argparse.ArgumentParser, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        parser.error(f"--loads is like 0.8,2, not {text!r}")


# -- the points -----------------------------------------------------------------------------------


def path_of(args: argparse.Namespace, load: float, gateway: str) -> Path:
    folder: Path = args.points
    return folder / f"{load:g}-{gateway}.json.gz"


def run_points(args: argparse.Namespace, setup: Setup, console: Console) -> None:
    """All gateways at one load, then the next: what changes with the hour meets all of them."""
    before = CpuTime.now()
    for load in args.loads:
        for gateway in args.gateways:
            path = path_of(args, load, gateway)
            if args.resume and path.is_file() and Point.read(path).seconds == args.seconds:
                continue
            began = time.monotonic()
            point = measure(setup, load, gateway, args.seconds)
            point.keep(path)
            console.print(summary(setup, point), highlight=False)
            console.print(f"  {time.monotonic() - began:.0f} s", style="dim", highlight=False)
    console.print(f"Others used {before.others_of_all(CpuTime.now()):.0%} of the machine.", style="dim")


def summary(setup: Setup, point: Point) -> str:
    lines = [
        f"{point.load:g}× {NAMES[point.gateway]}: {point.offered_per_s:.1f} requests/s offered, "
        f"{point.prompt_per_s + point.output_per_s:,.0f} tokens/s computed ({point.output_per_s:,.0f} generated), "
        f"{point.idle:.0%} of the CPU idle, {point.spare:.0%} left by us"
    ]
    for lane, ttft_s, tpot_s in setup.good:
        found = lane_figures(point, lane, ttft_s, tpot_s)
        levels = " / ".join(f"{level * 1e3:,.0f}" for level in found.ttft_s)
        lines.append(
            f"  {lane:6}{found.requests:6} requests, {found.refused_share:6.1%} refused, {found.failed} failed, "
            f"{found.cut} cut off, {found.good / max(1, found.requests):.0%} good; TTFT p50 / p95 / p99 {levels} ms"
        )
    cores = ", ".join(f"{role} {used:.2f}" for role, used in point.cores.items())
    lines.append(
        f"  cores in use: {cores}; engines {point.behind_s:.2f} s behind; lag p99 {point.lag_p99_s * 1e3:.1f} ms"
    )
    return "\n".join([*lines, *([f"  {point.client_behind}"] if point.client_behind else [])])


def read_points(args: argparse.Namespace) -> list[Point]:
    paths = [path_of(args, load, gateway) for load in args.loads for gateway in args.gateways]
    return [Point.read(path) for path in paths if path.is_file()]


# -- the result -----------------------------------------------------------------------------------


def conclude(args: argparse.Namespace, setup: Setup, console: Console) -> int:
    points = read_points(args)
    if not points:
        raise Unusable(f"no points in {args.points}")
    offered = shares(setup.workload(1.0, 600.0).arrivals(SEED))
    found, made = verdicts(setup, points, offered[INTERACTIVE])
    missing = len(args.loads) * len(args.gateways) - len(points)
    facts = the_facts(setup, points, offered)
    tables = grids(setup, points)
    for table in tables:
        console.print(table.table(""))
    console.print(verdict_grid(found).table(TITLE))
    late = [f"{point.load:g}× {point.gateway}" for point in points if point.client_behind]
    if late:
        facts["client_fell_behind_at"] = ", ".join(late)
        console.print(f"The client fell behind at {', '.join(late)}.", style="bold red")
    if missing:
        console.print(f"{missing} points are missing: --resume measures them.", style="yellow")
    if args.out is not None:
        Report(TITLE, "benchmarks/tail.py", facts, found, figures(setup, points) | made, tables).keep(args.out)
        picture = PICTURE if args.out == RESULTS / "tail.json" else args.out.with_suffix(".svg")
        picture.write_text(draw(setup, points))
        console.print(f"written: {args.out}, {args.out.with_suffix('.md').name} and {picture}", highlight=False)
    if any(verdict.passed is False for verdict in found):
        return 1
    return 2 if missing or late or any(verdict.unjudged for verdict in found) else 0


def the_facts(setup: Setup, points: list[Point], offered: dict[str, float]) -> Facts:
    versions, _ = installed(tuple({point.gateway for point in points} - {OURS}))
    shown = ", ".join(f"{lane} {share:.0%}" for lane, share in offered.items())
    return {
        **machine(),
        **{NAMES[peer]: version for peer, version in versions.items()},
        "fleet": f"{setup.replicas} × {setup.says}",
        "capacity": f"{setup.capacity_per_s:g} requests/s of this mix",
        "mix": setup.mix,
        "shares of the tokens offered": shown,
        "each point": f"{points[0].seconds:g} s of arrivals, then up to {DRAIN_S:g} s for what is under way",
        "good": "; ".join(
            f"{lane}: first token within {ttft_s:g} s" + (f", then {tpot_s * 1e3:g} ms each" if tpot_s else "")
            for lane, ttft_s, tpot_s in setup.good
        ),
    }


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the blocks that end processes run then, too
    console = Console(width=None if sys.stdout.isatty() else 160)
    args = arguments()
    setup = SETUPS["real" if args.real else "emulated"]
    try:
        if not args.judge:
            take_precedence()
            run_points(args, setup, console)
        return conclude(args, setup, console)
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
