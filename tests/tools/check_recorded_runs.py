#!/usr/bin/env python3
"""Trains each recorded run of tests/golden/runs and compares every step with the record: loss, gradient norm, learning rate, loss
scale, skipped steps, and at the end the exported weights. Those with a checkpoint in tests/golden/checkpoints also go on from it, on the
ranks that saved it and on one rank, and from its universal form.
Usage: check_recorded_runs.py --zero3d BINARY [--jobs N] [--extra "OPTIONS OF TRAIN"] [NAME...]   (default: all)"""
import argparse
import array
import concurrent.futures
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

from support import GOLDEN, MODELS, RUNS, environment, read_lines, read_safetensors

CHECKPOINTS = GOLDEN / "checkpoints"
SINGLE = 2e-5  # relative difference of losses in fp32
HALF = 2e-3  # and in 16-bit runs
# Muon orthogonalises in bf16 in the recorded runs, so that their own rounding scatters.
MUON = 5e-4


extra = []  # options of train for every run


class Mismatch(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Mismatch(message)


def close(got, wanted, relative, absolute=1e-7):
    return got is not None and abs(got - wanted) <= relative * max(abs(got), abs(wanted)) + absolute


class Run:
    def __init__(self, folder):
        self.name = folder.name
        self.record = json.loads((folder / "run.json").read_text())
        self.text = (folder / "ds_config.json").read_text()
        self.config = json.loads(self.text)
        enabled = [key for key in ("fp16", "bf16") if (self.config.get(key) or {}).get("enabled")]
        self.dtype = {"fp16": "F16", "bf16": "BF16"}[enabled[0]] if enabled else "F32"
        self.muon = "muon" in (self.config.get("optimizer") or {}).get("type", "").lower()

    first = 0  # steps that a checkpoint has behind it
    resume = None

    def supported(self):
        return True

    def recorded_norms(self):
        """Stage 0 recorded none; those of the same run at stage 1 are the same numbers."""
        sister = RUNS / re.sub("-z0$", "-z1", self.name) / "run.json"
        records = json.loads(sister.read_text())["records"] if sister.exists() else self.record["records"]
        return [step["grad_norm"] for step in records]

    def train(self, zero3d, work):
        (work / "nvme").mkdir()
        (work / "ds_config.json").write_text(self.text.replace("@NVME@", str(work / "nvme")))
        r = self.record
        command = [zero3d, "train", "--config", work / "ds_config.json", "--model", MODELS / r["model"],
                   "--data", RUNS / r["tokens"], "--data-format", "u16", "--order", "sequential",
                   "--seq-len", r["seq"], "--steps", r["steps"], "--ranks", r["world"],
                   "--metrics", work / "metrics.jsonl", "--export", work / "exported"]
        for degree in ("tp", "pp"):
            if r.get(degree, 1) > 1:
                command += [f"--{degree}", r[degree]]
        for pattern in r.get("frozen", []):
            command += ["--freeze", pattern]
        if self.resume:
            command += ["--resume", self.resume]
        result = subprocess.run([str(part) for part in command + extra], capture_output=True, text=True, timeout=100,
                                env=environment(), check=False)
        require(result.returncode == 0, f"exit {result.returncode}: {result.stderr.strip()[-300:]}")
        return read_lines(work / "metrics.jsonl")

    def check_steps(self, got):
        wanted = self.record["records"][self.first:]
        norms = self.recorded_norms()[self.first:]
        require(len(got) == len(wanted), f"{len(got)} steps, not {len(wanted)}")
        applied = next((i for i, step in enumerate(wanted) if not step["skipped"]), 0)
        # Loss scales at which a recorded step overflowed after the first applied one: the edge of fp16, either way is right.
        edge = {step["loss_scale"] for step in wanted[applied:] if step["skipped"]}
        tolerance = SINGLE if self.dtype == "F32" else HALF
        if self.muon:
            tolerance = max(tolerance, MUON)
        norm_factor = 10 if self.dtype == "F32" else 15
        for i, (mine, step) in enumerate(zip(got, wanted)):
            where = f"step {step['step']}: "
            require(close(mine["loss"], step["loss"], tolerance), f"{where}loss {mine['loss']}, recorded {step['loss']}")
            require(close(mine["lr"], step["lr"][0], 1e-6, 1e-12), f"{where}lr {mine['lr']}, recorded {step['lr'][0]}")
            if mine["skipped"] != step["skipped"]:
                require(i > applied and mine["loss_scale"] in edge, f"{where}skipped {mine['skipped']}, recorded {step['skipped']}")
                return
            if self.dtype == "F16":
                require(mine["loss_scale"] == step["loss_scale"],
                        f"{where}loss scale {mine['loss_scale']}, recorded {step['loss_scale']}")
            # Where its loss scale grows, the recorded engine divides by the grown one: its update is halved.
            grows = self.dtype == "F16" and i + 1 < len(wanted) and wanted[i + 1]["loss_scale"] > step["loss_scale"]
            if norms[i] and not step["skipped"] and not grows:
                require(close(mine["grad_norm"], norms[i], norm_factor * tolerance),
                        f"{where}gradient norm {mine['grad_norm']}, recorded {norms[i]}")
            if grows:
                tolerance = 3 * HALF

    def check_weights(self, folder):
        weights = {}
        for file in folder.glob("*.safetensors"):
            weights.update(read_safetensors(file))
        for name, wanted in (self.record["final"] or {}).items():
            require(name in weights, f"the export lacks {name}")
            dtype, shape, raw = weights[name]
            require(dtype == self.dtype and math.prod(shape) == wanted["numel"], f"{name} was exported as {dtype} {shape}")
            # The gradient of a key's bias is nothing but rounding noise, which Adam makes large.
            if dtype != "F32" or re.search(r"(c_attn|k_proj)\.bias$", name):
                continue
            values = array.array("f", raw)
            tolerance = 2e-2 if self.muon else 20 * SINGLE
            norm = math.sqrt(math.fsum(x * x for x in values))
            require(close(norm, wanted["norm"], tolerance), f"norm of {name} {norm}, recorded {wanted['norm']}")
            total = math.fsum(values)
            require(abs(total - wanted["sum"]) <= 10 * tolerance * wanted["abs_sum"] + 1e-7,
                    f"sum of {name} {total}, recorded {wanted['sum']}")


class Resumed(Run):
    """The rest of a run, from what DeepSpeed saved of it; `form` is "as saved", "one rank" or "universal"."""

    def __init__(self, folder, form):
        super().__init__(folder)
        self.first = self.record["save_at"]
        self.resume = CHECKPOINTS / self.name
        self.name += f", resumed {form}"
        if form == "universal":
            self.resume = next(self.resume.glob("*_universal"))
        if form == "one rank":
            for key in ("train_batch_size", "pipeline", "tensor_parallel"):
                self.config.pop(key, None)
            self.config["gradient_accumulation_steps"] = self.record["accumulation"] * self.record["dp"]
            self.text = json.dumps(self.config)
            self.record.update(world=1, pp=1, tp=1)


def resumed_runs():
    for checkpoint in sorted(CHECKPOINTS.iterdir()):
        folder = RUNS / checkpoint.name
        if not (folder / "run.json").exists() or not (checkpoint / "latest").exists():
            continue
        yield Resumed(folder, "as saved")
        yield Resumed(folder, "one rank")
        if any(checkpoint.glob("*_universal")):
            yield Resumed(folder, "universal")


def check(run, zero3d):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        try:
            run.check_steps(run.train(zero3d, work))
            run.check_weights(work / "exported")
        except (Mismatch, subprocess.TimeoutExpired, KeyError, OSError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zero3d", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--extra", default="")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    extra.extend(arguments.extra.split())
    runs = [Run(folder) for folder in sorted(RUNS.iterdir()) if (folder / "run.json").exists()]
    runs += resumed_runs()
    runs = [run for run in runs if (run.name in arguments.names if arguments.names else run.supported())]
    if not runs or len(runs) < len(arguments.names):
        sys.exit("no such recorded run")
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda run: check(run, arguments.zero3d), runs))
    for run, wrong in zip(runs, results):
        print(f"{run.name}: {wrong or 'as recorded'}")
    failed = sum(wrong is not None for wrong in results)
    print(f"{len(runs) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
