#!/usr/bin/env python3
"""Drives beside fio (io_uring, registered, O_DIRECT, same block size and depth, same file system, in turns).

  bench/peers/fio.py build/release/bin --path DIR             `zero3d bench io` beside fio's sequential jobs
  bench/peers/fio.py build/release/bin step --path DIR        an optimizer step from the drive, with next to no tokens to
                                                              hide it behind, beside fio's time for its bytes as a mixed job
  bench/peers/fio.py build/release/bin save --path DIR        `zero3d bench save` beside fio's sequential jobs
Needs fio. Figures are medians over rounds; ratios are medians of the rounds' ratios.
"""
import argparse
import json
import os
import re
import statistics
import subprocess

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def fio(path, rw, size, block, depth):
    file = os.path.join(path, "fio.bin")
    try:
        output = subprocess.run(
            ["fio", "--name=job", f"--filename={file}", f"--rw={rw}", f"--size={size}", f"--bs={block}", f"--iodepth={depth}",
             "--ioengine=io_uring", "--fixedbufs", "--registerfiles", "--direct=1", "--end_fsync=1",
             "--output-format=json"], check=True, capture_output=True, text=True).stdout
    finally:
        if rw != "write" and os.path.exists(file):
            os.remove(file)
    return json.loads(output)["jobs"][0]


def compare_streams(args):
    size = args.size << 20
    ours, theirs, seconds = {"write": [], "read": []}, {"write": [], "read": []}, {"write": [], "read": []}
    for _ in range(args.rounds):
        for rw in ("write", "read"):
            theirs[rw].append(fio(args.path, rw, size, args.block, args.depth)[rw]["bw_bytes"] / 1e9)
        output = subprocess.run(
            [os.path.join(args.bin, "zero3d"), "bench", "io", "--path", args.path, "--size", str(size), "--block-size", str(args.block),
             "--queue-depth", str(args.depth), "--direct"], check=True, capture_output=True, text=True).stdout
        row = next(line for line in output.splitlines() if re.match(r"(io_uring|threads) ", line)).split()
        for column, rw in ((4, "write"), (5, "read")):
            ours[rw].append(float(row[column]))
            seconds[rw].append(float(row[column + 2]))
    for rw in ("write", "read"):
        ratio = statistics.median(a / b for a, b in zip(ours[rw], theirs[rw]))
        print(f"{rw:5}  zero3d {statistics.median(ours[rw]):.2f} GB/s ({min(ours[rw]):.2f} to {max(ours[rw]):.2f}), fio "
              f"{statistics.median(theirs[rw]):.2f} ({min(theirs[rw]):.2f} to {max(theirs[rw]):.2f}): {ratio:.2f} of it (wanted 0.95); "
              f"{statistics.median(seconds[rw]):.3f} s of processor time a GB (wanted 0.05)")


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def compare_step(args):
    ratios = []
    for _ in range(args.rounds):
        output = subprocess.run(
            [os.path.join(args.bin, "offload_bench"), "--batch", "1", "--sequence", "8", "--rounds", "4", "step", "--path", args.path,
             "--tile", str(args.tile)], check=True, capture_output=True, text=True).stdout
        row = re.search(r"nvme +([\d.]+) s, without ([\d.]+) s.*read ([\d.]+ \w+), written ([\d.]+ \w+)", output)
        step, computed, moved = float(row[1]), float(row[2]), bytes_of(row[3]) + bytes_of(row[4])
        mixed = fio(args.path, "rw", int(moved) >> 20 << 20, args.block, args.depth)["job_runtime"] / 1e3
        ratios.append(step / max(mixed, computed))
        print(f"step {step:.3f} s for {moved / 1e9:.2f} GB, without a drive {computed:.3f} s, fio mixed {mixed:.3f} s: {ratios[-1]:.2f}", flush=True)
    print(f"median {statistics.median(ratios):.2f} (wanted 1.05)")


def compare_saves(args):
    """Rates of a checkpoint of as many bytes, and what an asynchronous one keeps training waiting."""
    size = args.size << 20
    shares = {"save": [], "load": []}
    for _ in range(args.rounds):
        theirs = {rw: fio(args.path, rw, size, args.block, args.depth)[rw]["bw_bytes"] / 1e9 for rw in ("write", "read")}
        output = subprocess.run(
            [os.path.join(args.bin, "zero3d"), "bench", "save", "--path", args.path, "--size", str(size), "--repeats", "1"], check=True,
            capture_output=True, text=True).stdout
        ours = {what: [float(x) for x in re.search(rf"^ *{what}.*? ([\d.]+) s +([\d.]+) GB/s$", output, re.M).groups()]
                for what in ("save", "load", "of that", "one copy")}
        for what, rw in (("save", "write"), ("load", "read")):
            shares[what].append(ours[what][1] / theirs[rw])
        stall, most = ours["of that"][0], max(0.05 * ours["save"][0], 1.3 * ours["one copy"][0])
        print(f"save {ours['save'][1]:.2f} GB/s, fio {theirs['write']:.2f}; load {ours['load'][1]:.2f}, fio {theirs['read']:.2f}; "
              f"stall {stall:.3f} s (wanted {most:.3f})", flush=True)
    for what, values in shares.items():
        print(f"{what}  {statistics.median(values):.2f} of fio's rate (wanted 0.9)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="the folder of zero3d and offload_bench")
    parser.add_argument("what", nargs="?", choices=["streams", "step", "save"], default="streams")
    parser.add_argument("--path", required=True)
    parser.add_argument("--size", type=int, default=2048, help="MiB of a file")
    parser.add_argument("--block", type=int, default=1 << 20)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--tile", type=int, default=2 << 20, help="elements: GPT-2 124M then has over 60 tiles")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    {"streams": compare_streams, "step": compare_step, "save": compare_saves}[args.what](args)


if __name__ == "__main__":
    main()
