"""Fits the built-in profiles of 70B models on several GPUs to measured kernels, and says how far off the fit is.

benchmarks/data/kernel_sums_70b.csv has, for each GPU, tensor-parallel degree and number of tokens in a step, the sum
of the linear and element-wise kernels of 80 layers, in ms. It was made by --from DIR of Vidur's profiles of
Llama-2-70B (H100) and Llama-3-70B (A100), MIT licence, (c) Microsoft. Attention is that of the 8B profiles, scaled:
per-token reads by KV bytes on a GPU, pairs by heads and layers on a GPU.

Left out, as with 8B: what the host does beyond T0, sampling, throttling, and all communication between the GPUs. The
factor 1.2 stands for these.
"""

import argparse
import csv
import gzip
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from headgate.machine.profile_fit import KNEES, LeastSquares  # noqa: E402

DATA = HERE / "data" / "kernel_sums_70b.csv"
FILES = {"h100": "vidur_h100_Llama-2-70b-hf_linear_ops.csv.gz", "a100": "vidur_a100_Meta-Llama-3-70B_linear_ops.csv.gz"}
LAYERS, HEADS, KV_HEADS = 80, 64, 8
SMALL = {"layers": 32, "heads": 32, "kv_heads": 8}
SMALL_K = {"h100": 4.4e-5, "a100": 8.6e-5}
SMALL_G = {"h100": 4.0e-7, "a100": 1.49e-6}
HEAD_MS = {"h100": 0.70, "a100": 1.05}
"""Reading the output layer (128 256 × 8 192 in bf16), on one GPU."""
DEGREES = (4, 8)


@dataclass(frozen=True)
class LargeFit:
    fixed_ms: float
    knee: int
    beyond_ms: float
    token_ms: float
    k: float
    g: float
    mean_error: float
    largest_error: float


def fit(rows: list[tuple[int, float]], gpu: str, degree: int) -> LargeFit:
    best: tuple[float, int, list[float]] | None = None
    for knee in KNEES:
        sums = LeastSquares(3)
        for tokens, ms in rows:
            sums.add((1.0, float(tokens), float(max(0, tokens - knee))), ms, ms**-2)
        error, terms = sums.solved()
        if best is None or error < best[0]:
            best = (error, knee, terms)
    assert best is not None
    _, knee, (fixed, token, beyond) = best
    off = [(fixed + token * n + beyond * max(0, n - knee)) / ms - 1.0 for n, ms in rows]
    heads = LAYERS / SMALL["layers"] / degree
    return LargeFit(
        fixed + HEAD_MS[gpu] / degree,
        knee,
        beyond,
        token,
        SMALL_K[gpu] * heads * KV_HEADS / SMALL["kv_heads"],
        SMALL_G[gpu] * heads * HEADS / SMALL["heads"],
        fmean(abs(one) for one in off),
        max(abs(one) for one in off),
    )


def read() -> dict[tuple[str, int], list[tuple[int, float]]]:
    found: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    with DATA.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["gpu"], int(row["gpus"])].append((int(row["tokens"]), float(row["ms"])))
    return found


def reduce(folder: Path) -> None:
    """Writes DATA: the sums of every eighth number of tokens, the median where it was measured more than once."""
    with DATA.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("gpu", "gpus", "tokens", "ms"))
        for gpu, name in FILES.items():
            sums: dict[tuple[int, int], list[float]] = defaultdict(list)
            with gzip.open(folder / name, "rt", newline="") as file:
                for row in csv.DictReader(file):
                    tokens, degree = int(row.pop("num_tokens")), int(row.pop("num_tensor_parallel_workers"))
                    if degree in DEGREES:
                        sums[degree, tokens].append(LAYERS * sum(float(cell) for cell in row.values() if cell))
            for degree in DEGREES:
                counts = sorted(tokens for known, tokens in sums if known == degree)
                for tokens in counts[:: len(counts) // 40]:
                    writer.writerow((gpu, degree, tokens, f"{median(sums[degree, tokens]):.2f}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, help="make the data anew from Vidur's files in this folder")
    args = parser.parse_args()
    if args.folder is not None:
        reduce(args.folder)
    for (gpu, degree), rows in read().items():
        found = fit(rows, gpu, degree)
        print(
            f"{gpu}x{degree}: fixed={found.fixed_ms:.2f}, knee={found.knee}, beyond={found.beyond_ms:.4f}, "
            f"token={found.token_ms:.4f}, k={found.k:.3g}, g={found.g:.3g}; {len(rows)} rows, "
            f"mean error {found.mean_error:.1%}, largest {found.largest_error:.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
