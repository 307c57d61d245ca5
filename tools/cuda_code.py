#!/usr/bin/env python3
"""Looks at the code that nvcc makes of kernels/cuda: no kernel keeps registers in memory (spills), and those that are compiled for
aligned arrays move 16 bytes at a time. Compiles each source again, as the build does, for one architecture.

  tools/cuda_code.py [BUILD] [NAME ...]    default: build/cuda, all sources; NAME: some of them, 'norm'

Ends with 'N kernels, N problems'; fails if there are any."""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Kernels whose first parameter of a template is how many elements a thread takes: those for eight are the wide ones.
WIDE = re.compile(r"(elements|matrix)_kernelILi8E")


def compiled(entry, *options):
    """What nvcc says, with the options instead of an object file."""
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at:at + 2]
    command = [word for word in command if word != "-c" and not word.startswith("--generate-code") and "ccache" not in word]
    result = subprocess.run(command + ["-arch=sm_90", *options], cwd=entry["directory"], text=True, capture_output=True)
    if result.returncode:
        sys.exit(f"{entry['file']}: {result.stderr}")
    return result.stdout + result.stderr


def spills(log):
    """The kernels that keep registers in memory, and how many kernels there are."""
    found = re.findall(r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill", log)
    return [name for name, bytes_ in found if int(bytes_)], len(found)


def narrow(ptx):
    """The wide kernels that have no access of 16 bytes."""
    found = []
    for name, body in re.findall(r"\.entry (\S+?)\((.*?)\n}", ptx, re.S):
        if WIDE.search(name) and not re.search(r"(ld|st)(\.global)?(\.\w+)*\.v4\.\w?32|\.v2\.\w64", body):
            found.append(name)
    return found


def main():
    arguments = sys.argv[1:]
    build = pathlib.Path(arguments.pop(0) if arguments and "/" in arguments[0] else ROOT / "build/cuda")
    entries = json.loads((build / "compile_commands.json").read_text())
    kernels, problems = 0, []
    seen = set()
    for entry in entries:
        source = pathlib.Path(entry["file"])
        if source.suffix != ".cu" or source.parent != ROOT / "kernels/cuda" or source in seen:
            continue
        if arguments and source.stem not in arguments:
            continue
        seen.add(source)
        with tempfile.TemporaryDirectory() as folder:
            log = compiled(entry, "-cubin", "-Xptxas", "-v", "-o", f"{folder}/code")
            compiled(entry, "-ptx", "-o", f"{folder}/ptx")
            spilling, count = spills(log)
            problems += [f"{source.name}: registers of {name} lie in memory" for name in spilling]
            problems += [f"{source.name}: {name} has no access of 16 bytes" for name in narrow(pathlib.Path(folder, "ptx").read_text())]
            kernels += count
    for problem in problems:
        print(problem)
    print(f"{kernels} kernels, {len(problems)} problems")
    sys.exit(bool(problems) or kernels == 0)


main()
