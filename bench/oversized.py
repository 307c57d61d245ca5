#!/usr/bin/env python3
"""Trains a model far larger than the device's budget on real text, and prints what it took: the plan, the losses, the
peak of resident memory, and what moved. Not part of the tests: it takes minutes, and tens of gigabytes of a drive.

  bench/oversized.py build/release/bin/zero3d TEXT --path DIR                 1.56 B parameters, all of it on a drive
  bench/oversized.py build/release/bin/zero3d TEXT --tier cpu                 0.93 B, in host memory
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

# Name, layers, width, heads.
SHAPES = {"1.56B": (48, 1600, 25), "0.93B": (36, 1408, 22)}


def model_folder(folder, shape):
    layers, width, heads = SHAPES[shape]
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
              "n_embd": width, "n_layer": layers, "n_head": heads, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
              "resid_pdrop": 0.0}
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)


def ds_config(args):
    place = {"device": "cpu"} if args.tier == "cpu" else {"device": "nvme", "nvme_path": args.path}
    parameters = dict(place) if args.tier == "cpu" else dict(place, max_in_cpu=0, buffer_size=16777216)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr}},
        "zero_optimization": {
            "stage": 3, "sub_group_size": 16777216, "reduce_bucket_size": 10000000, "overlap_comm": False,
            "stage3_max_live_parameters": 100000000, "stage3_prefetch_bucket_size": 10000000,
            "offload_optimizer": dict(place, pipeline_read=True, pipeline_write=True), "offload_param": parameters},
        "aio": {"queue_depth": 16},
        "pipeline": {"activation_checkpoint_interval": 1}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zero3d")
    parser.add_argument("text", help="a file of text, taken as bytes")
    parser.add_argument("--tier", choices=["nvme", "cpu"], default="nvme")
    parser.add_argument("--path", default="/tmp/zero3d-nvme", help="a folder on a drive, for nvme")
    parser.add_argument("--device-memory", default="1GiB")
    parser.add_argument("--sequence", default="128")
    parser.add_argument("--steps", default="5")
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    shape = "1.56B" if args.tier == "nvme" else "0.93B"
    with tempfile.TemporaryDirectory() as folder:
        model_folder(folder, shape)
        config, metrics = os.path.join(folder, "ds_config.json"), os.path.join(folder, "metrics.jsonl")
        with open(config, "w") as out:
            json.dump(ds_config(args), out)
        command = [args.zero3d, "train", "--config", config, "--model", folder, "--from-scratch", "--data", args.text,
                   "--data-format", "text", "--seq-len", args.sequence, "--steps", args.steps, "--device-memory",
                   args.device_memory, "--metrics", metrics]
        process = subprocess.Popen(command)
        _, status, use = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"the run ended with {os.waitstatus_to_exitcode(status)}")
        with open(metrics) as lines:
            records = [json.loads(line) for line in lines]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    moved = records[-1]["offload"]
    print(f"{shape}: peak of resident memory {use.ru_maxrss / 2**20:.2f} GiB, the device's budget included")
    print("losses " + ", ".join(f"{loss:.3f}" for loss in losses))
    print(f"last step {records[-1]['seconds']:.1f} s: read {moved['read_bytes'] / 2**30:.2f} GiB, written "
          f"{moved['written_bytes'] / 2**30:.2f} GiB, in {moved['copied_in_bytes'] / 2**30:.2f} GiB, out "
          f"{moved['copied_out_bytes'] / 2**30:.2f} GiB; waited {moved['parameter_wait_seconds']:.1f} s for parameters, "
          f"{moved['state_wait_seconds']:.1f} s for tiles")


if __name__ == "__main__":
    main()
