#!/usr/bin/env python3
"""What becomes of a run on tp 2 x pp 2 under MPI when one of its processes is killed or throws in the middle of a pipeline: all end
within seconds, and the rank that was killed, or what was thrown, is named.
Usage: killed_rank_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [--kills N] [--seed N] [TEST...]"""
import argparse
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

import support
from support import options

RANKS = 4
LIMIT = 5  # seconds
TOKENS = [at * 7919 % 257 for at in range(1 << 16)]


class KilledRank(support.CommandTest):
    KILLS = 3
    SEED = 1

    def mesh_config(self, name):
        return self.config(name, train_batch_size=8, tensor_parallel={"autotp_size": 2}, pipeline={"stages": 2},
                           zero_optimization={"stage": 1})

    def start(self, folder, **more):
        """Processes that train; each leaves its number in a file of its rank."""
        arguments = self.train_arguments(config=self.mesh_config(f"{folder.name}.json"), comm_timeout=60, **more)
        command = [options.zero3d, *map(str, arguments)]
        launch = [options.mpiexec.split()[0]]
        flag = options.mpiexec.split()[1:]
        for rank in range(RANKS):
            launch += [":"] * (rank > 0) + [*flag, "1", "sh", "-c", f'echo $$ >pid.{rank}; exec "$@"', "sh", *command]
        return subprocess.Popen(launch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
                                env=support.environment(), stdin=subprocess.DEVNULL)

    def wait_for_steps(self, run, metrics, steps):
        deadline = time.monotonic() + 60
        while run.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") >= steps:
                return
            time.sleep(0.02)
        run.kill()
        self.fail("the run never trained: " + "".join(run.communicate()))

    def process_runs(self, pid):
        """Not where it has ended and nobody has asked how."""
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    def still_running(self, pids, until):
        left = [rank for rank in range(RANKS) if self.process_runs(pids[rank])]
        while left and time.monotonic() < until:
            time.sleep(0.02)
            left = [rank for rank in left if self.process_runs(pids[rank])]
        return left

    def test_killed_at_random_all_end_and_the_rank_is_named(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        draw = random.Random(self.SEED)
        for kill in range(self.KILLS):
            victim = draw.randrange(RANKS)
            with self.subTest(kill=kill, victim=victim):
                folder = self.folder / f"kill-{kill}"
                folder.mkdir()
                metrics = folder / "metrics.jsonl"
                run = self.start(folder, steps=1000000, metrics=metrics)
                self.addCleanup(run.kill)
                self.wait_for_steps(run, metrics, draw.randrange(1, 5))
                time.sleep(draw.random() * 0.1)
                pids = [int((folder / f"pid.{rank}").read_text()) for rank in range(RANKS)]
                os.kill(pids[victim], signal.SIGKILL)
                begin = time.monotonic()
                output, errors = run.communicate(timeout=60)
                took = time.monotonic() - begin
                self.assertNotEqual(run.returncode, 0)
                self.assertLess(took, LIMIT, errors)
                self.assertRegex(output + errors, rf"rank {victim}\b")
                self.assertEqual(self.still_running(pids, begin + LIMIT), [])

    def test_what_is_thrown_is_said_first(self):
        """A token that the model does not have, in the middle of data too long to be looked through at the start."""
        if not options.mpiexec:
            self.skipTest("built without MPI")
        data = self.folder / "tokens.u16"
        with open(data, "wb") as out:
            for _ in range(1 + (1 << 25) // len(TOKENS)):
                out.write(struct.pack(f"<{len(TOKENS)}H", *TOKENS))
            out.seek(2 * 16 * 8 * 3)  # in the fourth step of 8 samples of 16 tokens
            out.write(b"\xff\xff")
        begin = time.monotonic()
        run = self.start(self.folder, steps=1000000, data=data)
        self.addCleanup(run.kill)
        _, errors = run.communicate(timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertLess(time.monotonic() - begin, LIMIT + 10, errors)
        said = [line for line in errors.splitlines() if "zero3d: " in line or "failed" in line]
        self.assertTrue(said and "65535" in said[0], errors)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kills", type=int, default=KilledRank.KILLS)
    parser.add_argument("--seed", type=int, default=KilledRank.SEED)
    own, rest = parser.parse_known_args()
    KilledRank.KILLS, KilledRank.SEED = own.kills, own.seed
    sys.argv[1:] = rest
    support.main()
