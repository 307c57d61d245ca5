#!/usr/bin/env python3
"""What becomes of a run whose drive is full, refuses files or is not there: it is refused before the first step, on every rank.
Usage: drive_fault_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import os
import re
import signal
import subprocess
import time

import support
from support import MODELS, options

LIMIT = 10  # seconds


class DriveFault(support.CommandTest):
    def shape(self):
        """About 0.9 M parameters: 7 MiB of moments and masters of a rank of two in fp32."""
        folder = self.folder / "shape"
        if not folder.exists():
            folder.mkdir()
            config = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
            config.update(hidden_size=128, intermediate_size=512, num_hidden_layers=2, vocab_size=2048)
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    def zero_sections(self, path):
        drive = {"device": "nvme", "nvme_path": str(path)}
        for stage in (1, 2, 3):
            yield f"optimizer at stage {stage}", {"stage": stage, "offload_optimizer": drive}
        yield "parameters", {"stage": 3, "offload_param": {**drive, "max_in_cpu": 0}, "stage3_param_persistence_threshold": 0}

    def refused(self, zero, *parts, launcher=(), processes=False, **more):
        """One message that has `parts`, from ranks that all end within the limit, none by a signal, and before the first step."""
        arguments = self.train_arguments(model=self.shape(), from_scratch=True, config=self.config(zero_optimization=zero),
                                         ranks=None if processes else 2, **more)
        if processes:
            launcher = [*options.mpiexec.split(), "2"]
        begin = time.monotonic()
        result = self.run_command(arguments, launcher=launcher, timeout=60)
        self.assertLess(time.monotonic() - begin, LIMIT)
        self.assertGreater(result.returncode, 0, result.stdout + result.stderr)
        told = [line for line in result.stderr.splitlines() if line.startswith("zero3d: ")]
        self.assertEqual(len(told), 1, result.stderr)
        for part in parts:
            self.assertIn(str(part), told[0])
        self.assertNotIn("step 1", result.stdout)

    def refused_everywhere(self, path, *parts, **more):
        for name, zero in self.zero_sections(path):
            with self.subTest(name):
                self.refused(zero, *parts, **more)
        if options.mpiexec and "launcher" not in more:  # whose limits MPI's own files would meet
            with self.subTest("processes"):
                drive = {"device": "nvme", "nvme_path": str(path)}
                self.refused({"stage": 2, "offload_optimizer": drive}, *parts, processes=True, **more)

    def mount(self, name, *flags):
        """A tmpfs; skips the test where the user may not mount."""
        folder = self.folder / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(flags), "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            self.skipTest("may not mount a file system")
        self.addCleanup(subprocess.run, ["umount", str(folder)], check=False)
        return folder

    def test_a_drive_too_small(self):
        drive = self.mount("small", "size=1m")
        self.refused_everywhere(drive, drive, "needs ", " are free", "No space left on device")
        self.assertEqual(list(drive.iterdir()), [])

    def test_the_need_of_all_ranks_is_one_sum(self):
        drive = self.mount("small", "size=1m")
        zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(drive)}}
        config = self.config(zero_optimization=zero)
        dry = self.train(model=self.shape(), from_scratch=True, config=config, ranks=2, dry_run=True)
        warned = re.search(r"warning .*needs ([\d,]+) bytes .* for what 2 ranks offload to this drive, and ", dry.stderr)
        self.assertTrue(warned, dry.stderr)
        self.refused(zero, f"needs {warned[1]} bytes", "2 ranks offload")

    def test_a_path_that_the_system_would_cut_off(self):
        (self.folder / "mine" / "precious").mkdir(parents=True)
        for key, path in (("nvme_path", str(self.folder / "mine") + "/\0x"), ("nvme_path", "\0")):
            zero = {"stage": 2, "offload_optimizer": {"device": "nvme", key: path}}
            self.refused(zero, "zero_optimization.offload_optimizer.nvme_path", "NUL")
        result = self.run_command(self.train_arguments(config=self.config(
            zero3d={"nvme_paths": [str(self.folder / "mine") + "/\0x"]},
            zero_optimization={"stage": 2, "offload_optimizer": {"device": "nvme"}})))
        self.assertEqual(result.returncode, 1)
        self.assertIn("zero3d.nvme_paths", result.stderr)
        self.assertTrue((self.folder / "mine" / "precious").exists())

    def test_signals_take_what_lay_there(self):
        drive = self.folder / "swap"
        zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(drive)}}
        command = [options.zero3d, *self.train_arguments(config=self.config(zero_optimization=zero), ranks=2, steps=1000000)]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number):
                process = subprocess.Popen([str(part) for part in command], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                           text=True)
                self.addCleanup(process.kill)
                for line in process.stdout:
                    if line.startswith("step "):
                        break
                process.send_signal(number)
                process.communicate(timeout=60)
                self.assertEqual(process.returncode, 128 + number)
                self.assertEqual(list(drive.iterdir()), [])

    def test_files_that_may_not_grow(self):
        drive = self.folder / "swap"
        limited = ["bash", "-c", 'ulimit -f 256; exec "$@"', "bash"]
        self.refused_everywhere(drive, drive, "File too large", launcher=limited)
        self.assertEqual(list(drive.iterdir()), [])

    def test_a_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        self.refused_everywhere(self.folder / "file" / "swap", self.folder / "file" / "swap", "Not a directory")

    def test_a_drive_that_may_not_be_written(self):
        if os.geteuid() == 0:
            drive = self.mount("still", "ro")
            why = "Read-only file system"
        else:
            drive = self.folder / "still"
            drive.mkdir(mode=0o555)
            why = "Permission denied"
        self.refused_everywhere(drive, drive, why)

    def test_a_folder_that_is_not_there_is_made(self):
        drive = self.folder / "a" / "b"
        for name, zero in self.zero_sections(drive):
            with self.subTest(name):
                self.train(model=self.shape(), from_scratch=True, config=self.config(zero_optimization=zero), ranks=2)
                self.assertEqual(list(drive.iterdir()), [], "what lay there goes with the run")


if __name__ == "__main__":
    support.main()
