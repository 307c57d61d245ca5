#!/usr/bin/env python3
"""Trains recorded models with states drawn at random onto tiers, within budgets, and holds losses, norms and the exported
model to the bits of the same run with everything on the device.
Usage: offload_runs.py --zero3d BINARY [--sample N] [--seed N] [--jobs N]

Budgets are what a refusal asks for, times a number from 1 on, so that sizes are clipped and the number said is held to
be enough; peaks are held to the plan that the run printed. Ends with 'N passed, N failed'."""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from support import MODELS, RUNS, environment, read_lines

VOCABULARIES = {"llama-tiny": 257, "gpt2-tiny": 257, "gpt2-untied-4": 257, "gemma-tiny": 131, "qwen3-tiny": 131}
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def size(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


class Failure(Exception):
    """What is wrong with a run."""


class Case:
    def __init__(self, seed, work, zero3d):
        draw = random.Random(seed)
        self.zero3d = zero3d
        self.folder = work / str(seed)
        self.folder.mkdir()
        self.ranks = draw.choice((1, 1, 2, 3))
        self.stage = draw.choice((1, 2, 3, 3))
        self.model = draw.choice(sorted(VOCABULARIES))
        self.options = ["--recompute", "1"] if draw.random() < 0.3 else []
        self.config = {
            "train_micro_batch_size_per_gpu": draw.choice((1, 2)),
            "gradient_accumulation_steps": draw.choice((1, 2)),
            "gradient_clipping": draw.choice((0, 0.5)),
            "optimizer": {"type": draw.choice(("AdamW", "AdamW", "Adam", "Lamb")), "params": {"lr": 1e-3}},
            "zero3d": {"linear_tiles": 1, "head_tiles": 1},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": self.stage, "sub_group_size": draw.choice((2048, 5000, 1_000_000_000)),
                                  "stage3_param_persistence_threshold": draw.choice((0, 200, 100_000)),
                                  "reduce_bucket_size": draw.choice((1000, 500_000_000))}}
        precision = draw.choice(("", "bf16", "bf16", "fp16"))
        if precision:
            self.config[precision] = {"enabled": True}
        if draw.random() < 0.3:
            self.config["bf16"] = {"enabled": precision == "bf16", "check_grad_overflow": False}
        self.offload = self.draw_offload(draw)
        self.slack = draw.choice((1, 1.02, 1.3, None))

    def draw_offload(self, draw):
        drive = str(self.folder / "drive")
        keys = {}
        if draw.random() < 0.85:
            keys["offload_optimizer"] = {
                "device": draw.choice(("cpu", "nvme", "nvme")), "nvme_path": drive, "pin_memory": draw.random() < 0.7,
                "buffer_count": draw.choice((1, 2, 5)), "pipeline_read": draw.random() < 0.5,
                "pipeline_write": draw.random() < 0.5}
            if self.stage == 3:
                keys["offload_optimizer"]["ratio"] = draw.choice((1.0, 1.0, 0.6, 0.3, 0.0))
        if self.stage == 3 and draw.random() < 0.7:
            keys["offload_param"] = {
                "device": draw.choice(("cpu", "nvme", "nvme")), "nvme_path": drive, "pin_memory": draw.random() < 0.7,
                "buffer_count": draw.choice((1, 2, 5)), "buffer_size": draw.choice((3000, 100_000_000)),
                "max_in_cpu": draw.choice((0, 20_000, 1_000_000_000))}
        self.on_host = {"activation_checkpointing": {"cpu_checkpointing": True}} if self.options and draw.random() < 0.5 else {}
        self.checksums = draw.random() < 0.5
        return keys

    def describe(self):
        return json.dumps({"model": self.model, "ranks": self.ranks, "options": self.options, "slack": self.slack, **self.moved()})

    def moved(self):
        config = json.loads(json.dumps({**self.config, **self.on_host}))
        config["zero_optimization"].update(self.offload)
        config["zero3d"]["checksums"] = self.checksums
        return config

    def run(self, name, config, budgets=()):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        metrics = self.folder / f"{name}.jsonl"
        command = [self.zero3d, "train", "--config", path, "--model", MODELS / self.model, "--data",
                   RUNS / f"tokens-{VOCABULARIES[self.model]}.u16", "--data-format", "u16", "--seq-len", 16, "--steps", 4, "--ranks", self.ranks, "--threads", 1, "--metrics", metrics,
                   "--export", self.folder / name, *self.options, *budgets]
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment(), check=False,
                                timeout=300)
        if result.returncode:
            return result, None
        steps = [{key: line.get(key) for key in ("loss", "grad_norm", "skipped")} for line in read_lines(metrics)]
        weights = {p.name: p.read_bytes() for p in sorted((self.folder / name).glob("*.safetensors"))}
        return result, (steps, weights)

    def budgets(self):
        """By what refusals say, one budget after the other."""
        found = {"device": "1000", "host": "50"}
        for place in found:
            result, _ = self.run("refused", self.moved(), [f"--{key}-memory={value}" for key, value in found.items()])
            named = re.search(rf"raise it to (\w+) with --{place}-memory", result.stderr)
            if not named:
                raise Failure(f"no budget is named for the {place}: {result.stderr.strip()[-300:]}")
            found[place] = named[1]
        bytes_of = {key: int(re.match(r"\d+", text)[0]) * UNITS.get(re.sub(r"\d", "", text) or "B") for key, text in found.items()}
        return [f"--{key}-memory={int(value * self.slack)}" for key, value in bytes_of.items()]

    def hold(self):
        """Throws Failure for what is wrong."""
        _, expected = self.run("resident", self.config)
        if expected is None:
            raise Failure("the run on the device failed: " + _.stderr.strip()[-300:])
        budgets = self.budgets() if self.slack else []
        result, got = self.run("moved", self.moved(), budgets)
        if got is None:
            raise Failure(f"{budgets}: exit {result.returncode}: {result.stderr.strip()[-400:]}")
        if got[0] != expected[0]:
            raise Failure(f"{got[0]}, not {expected[0]}")
        if got[1] != expected[1]:
            raise Failure("other weights")
        for planned, peak in ((r"planned per rank: ([\d.]+ \w+)", r"peak +device ([\d.]+ \w+)"),
                              (r"planned per rank on the host: ([\d.]+ \w+)", r"host staging ([\d.]+ \w+)")):
            least, most = size(re.search(peak, result.stdout)[1]), size(re.search(planned, result.stdout)[1])
            if least > most * 1.006:
                raise Failure(f"a peak of {least}, and {most} in the plan")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zero3d", required=True)
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments, _ = parser.parse_known_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="zero3d-offload-") as work:
        cases = [Case(arguments.seed + i, pathlib.Path(work), arguments.zero3d) for i in range(arguments.sample)]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for case, run in [(case, pool.submit(case.hold)) for case in cases]:
                try:
                    run.result()
                except (Failure, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"{case.folder.name}: {error}\n    {case.describe()}", flush=True)
    print(f"{arguments.sample - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
