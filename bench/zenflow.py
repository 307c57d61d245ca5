#!/usr/bin/env python3
"""Trains a small model on real text with everything updated at every step, and with ZenFlow in several settings, from the same
weights over the same data; prints the curves side by side. Not part of the tests.

  bench/zenflow.py build/release/bin/zero3d TEXT --eval OTHER_TEXT
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

MODEL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 128,
         "n_layer": 4, "n_head": 4, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
STEP = {"select_strategy": "step", "select_interval": 16, "full_warm_up_rounds": 10}
RUNS = [("plain", None),
        ("every 4", dict(STEP, topk_ratio=0.1, update_interval=4)),
        ("every 4, overlap", dict(STEP, topk_ratio=0.1, update_interval=4, overlap_step=True)),
        ("every 16, overlap", dict(STEP, topk_ratio=0.1, update_interval=16, overlap_step=True)),
        ("share 0.01, every 4", dict(STEP, topk_ratio=0.01, update_interval=4, overlap_step=True))]


def run(args, folder, zenflow):
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    if zenflow:
        zero["zenflow"] = zenflow
    config, metrics = os.path.join(folder, "ds_config.json"), os.path.join(folder, "metrics.jsonl")
    with open(config, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "bf16": {"enabled": True},
                   "optimizer": {"type": "AdamW", "params": {"lr": args.lr}}, "zero_optimization": zero}, out)
    command = [args.zero3d, "train", "--config", config, "--model", folder, "--from-scratch", "--data", args.text,
               "--data-format", "text", "--seq-len", "64", "--steps", str(args.steps), "--metrics", metrics,
               "--eval-data", args.eval, "--eval-interval", str(args.steps // args.rows)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as lines:
        records = [json.loads(line) for line in lines]
    losses = [(r["step"], r["loss"]) for r in records if r["kind"] == "eval"]
    updates = [r["updates"] for r in records if r["kind"] == "train" and "updates" in r]
    return losses, updates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zero3d")
    parser.add_argument("text", help="a file of text, taken as bytes")
    parser.add_argument("--eval", required=True, help="another, which the model does not train on")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rows", type=int, default=8, help="of the table")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(MODEL, out)
        for name, zenflow in RUNS:
            results.append((name, *run(args, folder, zenflow)))
            print(f"{name}: done", file=sys.stderr)
    print("| step | " + " | ".join(name for name, *_ in results) + " |")
    print("|---" * (len(results) + 1) + "|")
    for row, (step, _) in enumerate(results[0][1]):
        print(f"| {step} | " + " | ".join(f"{losses[row][1]:.4f}" for _, losses, _ in results) + " |")
    for name, _, updates in results:
        if not updates:
            continue
        device, host = (sum(u[place] for u in updates) for place in ("on_device", "on_host"))
        print(f"{name}: {100 * host / (device + host):.1f} % of the updated elements on the host")


if __name__ == "__main__":
    main()
