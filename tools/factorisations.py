#!/usr/bin/env python3
"""Every factorisation of numbers of ranks into dp x tp x pp, at every ZeRO stage and, in pipelines, in every schedule: trains a nano
model of 16 blocks, 8 heads and 4 key and value heads with dropout, families in turn, and holds the losses of all steps to those of
one rank. Prints a table of the largest relative differences, and 'N passed, N failed'.
Usage: factorisations.py --zero3d BINARY [--ranks 1,2,4,8] [--steps N] [--sample N] [--jobs N] [NAME-REGEX...]

--sample takes so many of the runs, spread evenly."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "tools"))
from mesh_runs import FAMILIES, TOLERANCE  # noqa: E402
from support import RUNS, environment, read_lines  # noqa: E402

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v")
BATCH = 8
ALONE = {"dp": 1, "tp": 1, "pp": 1, "stage": 0, "schedule": "1f1b"}


def factorisations(ranks):
    for pp in (p for p in range(1, ranks + 1) if ranks % p == 0):
        for tp in (t for t in range(1, ranks // pp + 1) if ranks // pp % t == 0):
            yield {"dp": ranks // pp // tp, "tp": tp, "pp": pp}


def meshes(counts):
    for ranks in counts:
        for factors in factorisations(ranks):
            for stage in range(4):
                for schedule in SCHEDULES if factors["pp"] > 1 else SCHEDULES[:1]:
                    yield {**factors, "stage": stage, "schedule": schedule}


class Case:
    def __init__(self, family, mesh):
        self.family, self.mesh = family, mesh
        self.factors = "dp {dp} x tp {tp} x pp {pp}".format(**mesh)
        self.name = "{} stage {stage} {} {}".format(self.factors, mesh["schedule"] if mesh["pp"] > 1 else "-", family, **mesh)

    def config(self):
        return {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                "zero_optimization": {"stage": self.mesh["stage"], "stage3_param_persistence_threshold": 0}}

    def losses(self, arguments, work):
        folder = pathlib.Path(tempfile.mkdtemp(dir=work))
        (folder / "ds.json").write_text(json.dumps(self.config()))
        mesh = self.mesh
        command = [arguments.zero3d, "train", "--config", folder / "ds.json", "--model", work / self.family, "--from-scratch",
                   "--data", RUNS / "tokens-61.u16", "--data-format", "u16", "--seq-len", 8, "--steps", arguments.steps,
                   "--ranks", mesh["dp"] * mesh["tp"] * mesh["pp"], "--tp", mesh["tp"], "--pp", mesh["pp"], "--threads", 1,
                   "--log-level", "error", "--metrics", folder / "metrics.jsonl"]
        if mesh["pp"] > 1:
            command += ["--schedule", mesh["schedule"]]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment(), check=False,
                             timeout=900)
        if run.returncode:
            raise RuntimeError(f"exit {run.returncode}: {run.stderr.strip()[-300:]}")
        return [line["loss"] for line in read_lines(folder / "metrics.jsonl")]


def difference(expected, got):
    """The largest, relative; infinite where steps are missing."""
    if len(got) != len(expected):
        return float("inf")
    return max(abs(want - have) / abs(want) for want, have in zip(expected, got))


def sampled(cases, count):
    if not count or count >= len(cases):
        return cases
    return [cases[i * len(cases) // count] for i in range(count)]


def write_models(work):
    for family, config in FAMILIES.items():
        (work / family).mkdir()
        layers = {"n_layer" if family == "gpt2" else "num_hidden_layers": 16}
        (work / family / "config.json").write_text(json.dumps({**config, **layers}))


def run_all(arguments, cases, work):
    """Prints a line each; returns how many failed."""
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        alone = {family: pool.submit(Case(family, ALONE).losses, arguments, work)
                 for family in sorted({case.family for case in cases})}
        runs = [(case, pool.submit(case.losses, arguments, work)) for case in cases]
        print(f"{'mesh':<22} {'stage':<6} {'schedule':<12} {'model':<8} largest difference over {arguments.steps} steps")
        for case, run in runs:
            try:
                off = difference(alone[case.family].result(), run.result())
                text = f"{off:.1e}" + ("" if off <= TOLERANCE else "  FAILED")
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                off, text = float("inf"), f"FAILED: {error}"
            failed += not off <= TOLERANCE
            schedule = case.mesh["schedule"] if case.mesh["pp"] > 1 else "-"
            print(f"{case.factors:<22} {case.mesh['stage']:<6} {schedule:<12} {case.family:<8} {text}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zero3d", required=True)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*")
    arguments, _ = parser.parse_known_args()
    families = list(FAMILIES)
    everything = list(meshes([int(n) for n in arguments.ranks.split(",")]))
    # A step further every round, so that no even sample meets the same family again and again.
    cases = [Case(families[(i + i // len(families)) % len(families)], mesh) for i, mesh in enumerate(everything)]
    cases = sampled([case for case in cases if not arguments.names or any(re.search(n, case.name) for n in arguments.names)],
                    arguments.sample)
    with tempfile.TemporaryDirectory(prefix="zero3d-factorisations-") as work:
        work = pathlib.Path(work)
        write_models(work)
        failed = run_all(arguments, cases, work)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
