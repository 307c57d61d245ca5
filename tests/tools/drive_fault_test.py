#!/usr/bin/env python3
"""What becomes of a run whose drive is full, refuses files or is not there: it is refused before the first step, on every rank.
Usage: drive_fault_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import os
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
