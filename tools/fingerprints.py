#!/usr/bin/env python3
"""Fingerprints of varied short runs: metrics without times, and exported weights, to the bit. For changes that must not alter a
result: record before the first, check after each, on one machine.

    tools/fingerprints.py --record FILE BUILD        # BUILD: a build folder, such as build/release
    tools/fingerprints.py --check FILE BUILD [REGEX]
    tools/fingerprints.py --list

The runs are drawn from a fixed seed over models, ZeRO stages, ranks, precisions, optimizers, schedules, knobs of zero_optimization,
accumulation, frozen and tied parameters, dropout and data order; those of the API (its scopes, boundaries by hand, evaluation in
between) are bin/engine_fingerprints. What a run refuses is recorded as refused. Only what was recorded is compared, so that a
new field of the metrics is no difference. Ends with 'N passed, N failed'."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
TIMES = {"seconds", "tokens_per_second"}
RUNS = 240
MODELS = ["gpt2-tiny", "gpt2-odd", "gpt2-untied-4", "llama-tiny", "llama-mha-odd", "llama-tied-rope3", "qwen2-tiny"]

OPTIMIZERS = [
    {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]}},
    {"type": "Adam", "params": {"lr": 2e-3, "weight_decay": 0.05}},
    {"type": "Adam", "params": {"lr": 2e-3, "torch_adam": True, "adam_w_mode": False, "weight_decay": 0.02}},
    {"type": "Adagrad", "params": {"lr": 1e-2}},
    {"type": "Lion", "params": {"lr": 3e-4, "weight_decay": 0.1}},
    {"type": "Lamb", "params": {"lr": 3e-3, "weight_decay": 0.01}},
    {"type": "Muon", "params": {"lr": 2e-2, "momentum": 0.9, "adam_lr": 1e-3}},
    {"type": "SGD", "params": {"lr": 1e-1, "momentum": 0.9, "weight_decay": 1e-3}},
    {"type": "RMSprop", "params": {"lr": 1e-3}},
]
SCHEDULERS = [
    None,
    {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-3, "warmup_num_steps": 4}},
    {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 2, "total_num_steps": 9}},
    {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2, "total_num_steps": 8}},
    {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3, "cycle_first_step_size": 3}},
    {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 2}},
]
PRECISIONS = [
    {}, {}, {},
    {"bf16": {"enabled": True}}, {"bf16": {"enabled": True}},
    {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
    {"fp16": {"enabled": True, "initial_scale_power": 8}},
    {"fp16": {"enabled": True, "initial_scale_power": 32, "hysteresis": 1, "loss_scale_window": 3}},
    {"fp16": {"enabled": True, "loss_scale": 64}},
]
FROZEN = [[], [], [], ["h.0.", "layers.0."], ["wte", "embed_tokens"], ["ln_", "norm"], ["attn"]]


def zero_section(draw, stage, ranks):
    zero = {"stage": stage}
    if draw.random() < 0.6:
        zero["reduce_bucket_size"] = draw.choice([1, 1000, 5000, 40000])
    if draw.random() < 0.3:
        zero["overlap_comm"] = draw.choice([True, False])
    if draw.random() < 0.3:
        zero["allgather_bucket_size"] = draw.choice([500, 20000])
    if draw.random() < 0.4:
        zero["sub_group_size"] = draw.choice([1024, 3000, 10000])
    if draw.random() < 0.2:
        zero["reduce_scatter"] = False
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = draw.choice([0, 64, 1000, 100000])
        zero["stage3_prefetch_bucket_size"] = draw.choice([0, 3000, 1000000])
        zero["stage3_max_live_parameters"] = draw.choice([0, 20000, 10**9])
        zero["stage3_max_reuse_distance"] = draw.choice([0, 20000, 10**9])
        if ranks == 4 and draw.random() < 0.4:
            zero["zero_hpz_partition_size"] = 2
    if ranks == 4 and stage > 0 and draw.random() < 0.2:
        zero["mics_shard_size"] = 2
    return zero


def draw_case(number):
    draw = random.Random(number)
    stage = number % 4
    ranks = draw.choice([1, 2, 2, 3, 4, 5])
    optimizer = draw.choice(OPTIMIZERS)
    config = {"train_micro_batch_size_per_gpu": draw.choice([1, 2, 3]),
              "gradient_accumulation_steps": draw.choice([1, 1, 2, 3]),
              "gradient_clipping": draw.choice([0, 0.5, 1.0]),
              "optimizer": optimizer, "zero_allow_untested_optimizer": True,
              "zero_optimization": zero_section(draw, stage, ranks), **draw.choice(PRECISIONS)}
    scheduler = draw.choice(SCHEDULERS)
    if scheduler and not (scheduler["type"] == "OneCycle" and optimizer["type"] == "Adagrad"):
        config["scheduler"] = scheduler
    if draw.random() < 0.15:
        config["communication_data_type"] = draw.choice(["fp32", "bf16", "fp16"])
    if draw.random() < 0.15:
        config["data_types"] = {"grad_accum_dtype": draw.choice(["fp32", "bf16"])}
    if draw.random() < 0.15:
        config["prescale_gradients"] = True
    elif draw.random() < 0.15:
        config["gradient_predivide_factor"] = draw.choice([2.0, 4.0])
    arguments = {"steps": draw.choice([4, 6, 7]), "ranks": ranks, "threads": draw.choice([1, 1, 2]),
                 "seq-len": draw.choice([8, 15, 16, 24]), "order": draw.choice(["sequential", "shuffled"]),
                 "seed": draw.randrange(1000)}
    flags = [flag for flag, chance in (("--from-scratch", 0.3), ("--reduce-each-micro-batch", 0.1)) if draw.random() < chance]
    frozen = draw.choice(FROZEN)
    evaluates = draw.random() < 0.15
    return {"model": draw.choice(MODELS), "config": config, "arguments": arguments, "flags": flags, "frozen": frozen,
            "no_decay": ["bias", "norm", "ln_"] if draw.random() < 0.3 else [], "evaluates": evaluates,
            "dropout": 0.1 if draw.random() < 0.3 else 0}


def name_of(number, case):
    config = case["config"]
    precision = next((key for key in ("bf16", "fp16") if key in config), "fp32")
    return f"{number:03d}-z{number % 4}-r{case['arguments']['ranks']}-{precision}-{config['optimizer']['type']}-{case['model']}"


def copy_model(case, target):
    shutil.copytree(GOLDEN / "models" / case["model"], target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    for key in config:
        if key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"):
            config[key] = case["dropout"]
    path.write_text(json.dumps(config))
    return config["vocab_size"]


def weights_of(folder):
    """name -> digest of dtype, shape and bytes"""
    digests = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        for name, tensor in json.loads(raw[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            head = f"{tensor['dtype']}{tensor['shape']}".encode()
            digests[name] = hashlib.sha256(head + raw[begin:end]).hexdigest()[:16]
    return digests


def fingerprint(build, number, case):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        vocabulary = copy_model(case, work / "model")
        (work / "ds.json").write_text(json.dumps(case["config"]))
        data = GOLDEN / "runs" / f"tokens-{vocabulary}.u16"
        command = [build / "bin" / "zero3d", "train", "--config", "ds.json", "--model", "model", "--data", data, "--data-format", "u16",
                   "--metrics", "metrics.jsonl", "--export", "exported", "--no-bind", *case["flags"]]
        for key, value in case["arguments"].items():
            command += [f"--{key}", value]
        for option, patterns in (("--freeze", case["frozen"]), ("--no-decay", case["no_decay"])):
            names = (work / "model" / "model.safetensors").read_bytes()[:100000].decode("latin-1")
            for pattern in patterns:
                if pattern in names:
                    command += [option, re.escape(pattern)]
        if case["evaluates"]:
            command += ["--eval-data", data, "--eval-interval", 3]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        result = subprocess.run([str(part) for part in command], cwd=work, env=environment, capture_output=True, text=True,
                                timeout=120, check=False)
        # A run whose last steps were all skipped has written everything; only its exit code tells.
        skipped = result.returncode == 1 and "steps were all skipped" in result.stderr
        if result.returncode != 0 and not skipped:
            return {"exit": result.returncode}
        records = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
        return {"exit": 0, "metrics": [{k: v for k, v in record.items() if k not in TIMES} for record in records],
                "weights": weights_of(work / "exported")}


def api_fingerprints(build):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    result = subprocess.run([build / "bin" / "engine_fingerprints"], env=environment, capture_output=True, text=True, timeout=300,
                            check=False)
    found = {f"api-{line.split()[0]}": {"exit": 0, "digests": line.split()[1:]} for line in result.stdout.splitlines()}
    if result.returncode != 0:
        found["api-ends"] = {"exit": result.returncode}
    return found


def fingerprints(build, pattern, jobs):
    cases = {name_of(number, case): (number, case) for number, case in ((n, draw_case(n)) for n in range(RUNS))}
    chosen = {name: case for name, case in cases.items() if re.search(pattern, name)}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(chosen, pool.map(lambda item: fingerprint(build, *item), chosen.values())))
    results.update((name, found) for name, found in api_fingerprints(build).items() if re.search(pattern, name))
    return results


def difference(wanted, got):
    """The first thing in which `got` differs from what was recorded; None when it has all of it."""
    if got is None:
        return "was not run"
    if wanted["exit"] != got["exit"]:
        return f"exit {got['exit']}, recorded {wanted['exit']}"
    if wanted.get("digests") != got.get("digests"):
        return f"digests {got.get('digests')}, recorded {wanted.get('digests')}"
    mine, records = got.get("metrics", []), wanted.get("metrics", [])
    if len(mine) != len(records):
        return f"{len(mine)} records, recorded {len(records)}"
    for record, other in zip(records, mine):
        for key, value in record.items():
            if key not in other or other[key] != value:
                return f"step {record.get('step')}: {key} {other.get(key)}, recorded {value}"
    for name, digest in wanted.get("weights", {}).items():
        if got["weights"].get(name) != digest:
            return f"weights of {name}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--check", metavar="FILE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("pattern", nargs="?", default=".")
    arguments = parser.parse_args()
    if arguments.list:
        for number in range(RUNS):
            print(name_of(number, draw_case(number)))
        return
    if not arguments.build or bool(arguments.record) == bool(arguments.check):
        parser.error("give --record FILE or --check FILE, and a build folder")
    results = fingerprints(arguments.build.resolve(), arguments.pattern, arguments.jobs)
    trained = sum(result["exit"] == 0 for result in results.values())
    if arguments.record:
        pathlib.Path(arguments.record).write_text(json.dumps(results, indent=1) + "\n")
        print(f"recorded {len(results)} runs, {trained} of them trained")
        return
    recorded = json.loads(pathlib.Path(arguments.check).read_text())
    failed = 0
    for name, wanted in recorded.items():
        wrong = difference(wanted, results.get(name)) if re.search(arguments.pattern, name) else None
        if wrong:
            failed += 1
            print(f"{name}: {wrong}")
    compared = sum(bool(re.search(arguments.pattern, name)) for name in recorded)
    print(f"{compared - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
