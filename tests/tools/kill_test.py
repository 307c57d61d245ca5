#!/usr/bin/env python3
"""Kills and full disks: no checkpoint is lost, and the run goes on from the newest complete one as if nothing had been.
Usage: kill_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]

ZERO3D_KILLS=50: so many kills, of all ranks or, under MPI, of one of them; default: a few."""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import support
from support import options, read_lines, without_times

KILLS = int(os.environ.get("ZERO3D_KILLS", "0"))
MOST_WAIT = 5 if KILLS else 20  # seconds that ranks go on after one was killed; other tests may run beside a short one


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except OSError:
        return 0


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


class KillTest(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved"
        self.run_keys = {"config": self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0},
                                               bf16={"enabled": True}),
                         "order": "shuffled", "seed": 3}

    def records(self, name, **keywords):
        path = self.folder / name
        self.train(metrics=path, **self.run_keys, **keywords)
        return without_times(read_lines(path))

    def step_of(self, folder):
        return json.loads(self.succeed(["inspect", folder, "--json"]).stdout)["state"]["steps"]

    def start(self, launcher=(), **keywords):
        arguments = self.train_arguments(steps=100000, metrics=self.folder / "m.jsonl", save=self.saved, save_interval=1, keep_last=2,
                                         resume="latest", **self.run_keys, **keywords)
        process = subprocess.Popen([*launcher, options.zero3d, *map(str, arguments)], cwd=self.folder, env=support.environment(),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        return process

    def steps(self):
        path = self.folder / "m.jsonl"
        return path.read_text().count("\n") if path.exists() else 0


def ranks_of(process):
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(entry) == process.pid]
    return sorted(pid for pid in pids if b"zero3d" in command_of(pid).split(b"\0")[0])


class Kills(KillTest):
    def wait_until(self, moment, process):
        while time.monotonic() < moment and process.poll() is None:
            time.sleep(0.002)

    def kill(self, process, rng):
        """All ranks, or one, whose death ends the others."""
        ranks = ranks_of(process)
        if not ranks:  # they are threads
            process.kill()
        else:
            for rank in ranks if rng.random() < 0.4 else [rng.choice(ranks)]:
                os.kill(rank, signal.SIGKILL)
        begin = time.monotonic()
        process.wait(timeout=60)
        self.assertLess(time.monotonic() - begin, MOST_WAIT)

    def test_at_any_moment_the_run_goes_on_from_the_newest_checkpoint(self):
        rng = random.Random(KILLS)
        reached = 0
        for kill in range(KILLS or 6):
            mpi = options.mpiexec and kill % 3 == 2
            launcher = [*options.mpiexec.split(), "2"] if mpi else []
            process = self.start(launcher=launcher, save_async=kill % 2 == 0, **({} if mpi else {"ranks": 2}))
            before, end = self.steps(), time.monotonic() + (0.5 * rng.random() if rng.random() < 0.2 else 30)
            while self.steps() == before and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            self.wait_until(time.monotonic() + 0.2 * rng.random(), process)
            self.assertIsNone(process.poll(), "it has ended by itself")
            self.kill(process, rng)
            if not (self.saved / "latest").exists():
                continue
            self.succeed(["inspect", self.saved, "--verify"])
            step = self.step_of(self.saved)
            self.assertGreaterEqual(step, reached)
            reached = step
        self.assertGreater(reached, 0)
        straight = self.records("straight.jsonl", steps=reached + 2, ranks=2)
        got = [r for r in without_times(read_lines(self.folder / "m.jsonl")) if r["step"] <= reached]
        self.assertEqual(got, straight[:reached])
        resumed = self.records("resumed.jsonl", steps=reached + 2, ranks=2, resume=self.saved)
        self.assertEqual(resumed, straight[reached:])


class Cases(KillTest):
    """CKPT-03: what kills at set moments leave, laid there by hand."""

    def prepare(self):
        self.train(steps=2, ranks=2, save=self.saved, **self.run_keys)
        self.train(steps=4, ranks=2, save=self.saved, resume="latest", **self.run_keys)
        (self.saved / "latest").write_text("global_step2")
        return self.saved / "global_step4"

    def goes_on(self, said=None):
        result = self.train(steps=6, ranks=2, save=self.saved, save_interval=2, resume="latest", metrics=self.folder / "parts.jsonl",
                            **self.run_keys)
        if said:
            self.assertIn(said, result.stderr)
        straight = self.records("straight.jsonl", steps=6, ranks=2)
        self.assertEqual(without_times(read_lines(self.folder / "parts.jsonl")), straight[2:])
        self.assertEqual((self.saved / "latest").read_text(), "global_step6")
        self.assertEqual(sorted(p.name for p in self.saved.iterdir()), ["global_step2", "global_step4", "global_step6", "latest"])
        for step in (2, 4, 6):
            self.succeed(["inspect", self.saved / f"global_step{step}", "--verify"])

    def test_CKPT_03_between_shard_files(self):
        step4 = self.prepare()
        (step4 / "rank-00001.bin").unlink()
        (step4 / "zero3d.json").unlink()
        step4.rename(self.saved / "global_step4.tmp-{}-4000000-1".format(re.sub("[^A-Za-z0-9.]", "_", socket.gethostname())))
        self.goes_on("left of a save that was interrupted")

    def test_CKPT_03_before_the_manifest_where_no_rename_was(self):
        step4 = self.prepare()
        (step4 / "zero3d.json").unlink()
        self.goes_on("no whole checkpoint; it is replaced")

    def test_CKPT_03_before_latest_moves(self):
        self.prepare()
        self.goes_on()

    def test_CKPT_03_cut_short(self):
        path = self.prepare() / "rank-00001.bin"
        size = path.stat().st_size
        os.truncate(path, size - 8)
        runs = [{"ranks": 2}]
        if options.mpiexec:
            runs.append({})
        for ranks in runs:
            arguments = self.train_arguments(steps=6, resume=self.saved / "global_step4", **self.run_keys, **ranks)
            launcher = [] if ranks else [*options.mpiexec.split(), "2"]
            result = self.run_command(arguments, launcher=launcher, timeout=30)
            self.assertNotEqual(result.returncode, 0)
            for word in ("rank-00001.bin", f"{size:,}", f"{size - 8:,}"):
                self.assertIn(word, result.stderr.replace(str(size), f"{size:,}").replace(str(size - 8), f"{size - 8:,}"))


class FullDisk(KillTest):
    def test_neither_the_run_nor_the_last_checkpoint_is_lost(self):
        disk = self.folder / "disk"
        disk.mkdir()
        self.train(steps=1, ranks=2, save=self.saved, **self.run_keys)
        size = sum(p.stat().st_size for p in (self.saved / "global_step1").iterdir())
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size * 3 // 2 // 4096 * 4096}", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            self.skipTest("may not mount a file system")
        self.addCleanup(subprocess.run, ["umount", str(disk)], check=False)
        straight = self.records("straight.jsonl", steps=5, ranks=2)
        for number, more in enumerate(({}, {"save_async": True})):
            with self.subTest(more):
                save = disk / "saved"
                shutil.rmtree(save, ignore_errors=True)
                metrics = self.folder / f"full{number}.jsonl"
                result = self.run_command(self.train_arguments(steps=5, ranks=2, save=save, save_interval=2, metrics=metrics, **more,
                                                               **self.run_keys))
                self.assertEqual(result.returncode, 1, "the last save of the run has failed")
                self.assertIn("No space left on device", result.stderr)
                self.assertEqual(without_times(read_lines(metrics)), straight)
                self.assertEqual(sorted(p.name for p in save.iterdir()), ["global_step2", "latest"])
                self.succeed(["inspect", save, "--verify"])
                resumed = self.records(f"again{number}.jsonl", steps=5, ranks=2, resume=save)
                self.assertEqual(resumed, straight[2:])


if __name__ == "__main__":
    support.main()
