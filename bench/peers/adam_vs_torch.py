#!/usr/bin/env python3
"""Times `zero3d bench adam` in turn with torch.optim.AdamW(fused=True) and DeepSpeed's CPU Adam.

Run it by hand with a Python that has torch, and deepspeed if that is to be measured:
    python bench/peers/adam_vs_torch.py --zero3d build/release/bin/zero3d --numel 16M,128M --threads 1,2
Rounds are interleaved; the figures are medians over all updates of all rounds. Masters and moments are fp32. With `--dtype bf16` the
gradient comes and the parameter goes in bf16, as in training: the peers then convert before and after their step. Either way 28 bytes a
parameter have to move.
"""
import argparse
import os
import re
import statistics
import subprocess
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")

BYTES_PER_PARAMETER = 28


def count(text):
    units = {"k": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def torch_adamw(numel):
    import torch

    parameter = torch.nn.Parameter(torch.full((numel,), 0.01))
    parameter.grad = torch.full((numel,), 0.01)
    return torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.0, fused=True)


def deepspeed_adam(numel):
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(torch.full((numel,), 0.01))
    parameter.grad = torch.full((numel,), 0.01)
    return DeepSpeedCPUAdam([parameter], lr=1e-3, weight_decay=0.0, adamw_mode=True)


def in_bf16(optimizer):
    """The step of `optimizer` from a bf16 gradient to a bf16 copy of its parameter."""
    import torch

    parameter = optimizer.param_groups[0]["params"][0]
    gradient = torch.full_like(parameter, 0.01, dtype=torch.bfloat16)
    copy = torch.empty_like(gradient)

    def step():
        parameter.grad.copy_(gradient)
        optimizer.step()
        copy.copy_(parameter.detach())
    return step


def time_steps(step, repeats):
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def time_zero3d(options, numel, threads):
    command = [options.zero3d, "bench", "adam", "--numel", str(numel), "--threads", str(threads), "--repeats", str(options.repeats),
               "--print-times"]
    command += ["--gradient", "bf16", "--copy", "bf16"] if options.dtype == "bf16" else []
    command += ["--isa", options.isa] if options.isa else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: [float(x) for x in re.search(rf"^{name} seconds: (.*)$", output, re.M).group(1).split()]
            for name in ("adam", "null")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero3d", default="build/release/bin/zero3d")
    parser.add_argument("--numel", default="16M,128M")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="updates of each in one round")
    parser.add_argument("--peers", default="torch,deepspeed")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="of the gradient, and of a copy of the parameter")
    parser.add_argument("--isa", help="the instruction set of zero3d alone")
    options = parser.parse_args()

    import torch

    makers = {"torch": torch_adamw, "deepspeed": deepspeed_adam}
    for numel in map(count, options.numel.split(",")):
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            peers = {name: makers[name](numel) for name in options.peers.split(",") if name}
            peers = {name: in_bf16(peer) if options.dtype == "bf16" else peer.step for name, peer in peers.items()}
            for step in peers.values():
                time_steps(step, 2)
            seconds = {name: [] for name in ["zero3d", "null", *peers]}
            for _ in range(options.rounds):
                ours = time_zero3d(options, numel, threads)
                seconds["zero3d"] += ours["adam"]
                seconds["null"] += ours["null"]
                for name, step in peers.items():
                    seconds[name] += time_steps(step, options.repeats)
            rates = {name: BYTES_PER_PARAMETER * numel / statistics.median(values) * 1e-9
                     for name, values in seconds.items()}
            best = {name: BYTES_PER_PARAMETER * numel / min(values) * 1e-9 for name, values in seconds.items()}
            print(f"numel {numel} threads {threads}: " +
                  ", ".join(f"{name} {rates[name]:.1f} GB/s (best {best[name]:.1f})" for name in rates) + "; " +
                  ", ".join(f"zero3d/{name} {rates['zero3d'] / rates[name]:.2f}" for name in peers), flush=True)


if __name__ == "__main__":
    main()
