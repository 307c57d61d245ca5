#!/usr/bin/env python3
"""zero3d train --device cuda: recorded runs, and that evaluation, generation, checkpoints and the plan come from GPUs as from CPUs.
Usage: cuda_train_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]. Ends with 77 where there is no GPU."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest.mock

import support

RECORDED = ["adamw-fp32-z0", "adamw-fp32-z3", "adamw-bf16-z2", "autotp2-z1", "fp16-dynamic-z3", "llama-fp32-z2", "offload-all-z3",
            "offload-nvme-z3", "pipe2-bf16-z1", "muon-z1"]
SINGLE = 2e-5  # relative difference of losses in fp32, as of the recorded runs


class CudaTrain(support.CommandTest):
    def both(self, **keywords):
        """The records of a run on GPUs and of the same on CPUs."""
        return [self.metrics(device=device, **keywords) for device in ("cuda", "cpu")]

    def assert_close(self, got, wanted):
        self.assertEqual([sorted(r) for r in got], [sorted(r) for r in wanted])
        for mine, theirs in zip(got, wanted):
            for key in ("loss", "eval_loss", "grad_norm"):
                if key in theirs:
                    self.assertLessEqual(abs(mine[key] - theirs[key]), 10 * SINGLE * abs(theirs[key]), (key, mine, theirs))

    def test_recorded_runs(self):
        script = pathlib.Path(__file__).with_name("check_recorded_runs.py")
        result = subprocess.run([sys.executable, script, "--zero3d", support.options.zero3d, "--jobs", "1", "--extra", "--device cuda",
                                 *RECORDED], capture_output=True, text=True, timeout=600, env=support.environment(), check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_more_ranks_than_one_gpu_and_evaluation(self):
        config = self.config(zero_optimization={"stage": 3, "sub_group_size": 5000}, gradient_clipping=1.0)
        self.assert_close(*self.both(config=config, ranks=2, eval_data=support.RUNS / "tokens-257.u16"))

    def test_recomputation_changes_no_bit(self):
        plain = self.metrics(device="cuda")
        again = self.metrics(device="cuda", recompute=1)
        self.assertEqual([r["loss"] for r in plain], [r["loss"] for r in again])

    def test_a_checkpoint_goes_on_as_the_run_did(self):
        config = self.config(zero_optimization={"stage": 2})
        whole = self.metrics(device="cuda", config=config, ranks=2, steps=3)
        saved = self.folder / "saved"
        self.train(device="cuda", config=config, ranks=2, steps=2, save=saved)
        rest = self.metrics(device="cuda", config=config, ranks=2, steps=3, resume=saved)
        self.assertEqual(support.without_times(rest[-1:]), support.without_times(whole[-1:]))
        self.assert_close(self.metrics(device="cpu", config=config, ranks=2, steps=3, resume=saved)[-1:], whole[-1:])

    def test_processes_with_a_gpu_each_are_as_threads(self):
        if not support.options.mpiexec:
            self.skipTest("no mpiexec")
        config = self.config(zero_optimization={"stage": 1}, gradient_accumulation_steps=2)
        for degrees in ({}, {"tp": 2}):
            with self.subTest(degrees):
                threads = self.metrics(device="cuda", config=config, ranks=2, **degrees)
                path = self.folder / "processes.jsonl"
                self.succeed(self.train_arguments(device="cuda", config=config, metrics=path, **degrees),
                             launcher=[*support.options.mpiexec.split(), "2"])
                self.assertEqual(support.without_times(support.read_lines(path)), support.without_times(threads))
        result = self.run_command(self.train_arguments(device="cuda", config=config, pp=2),
                                  launcher=[*support.options.mpiexec.split(), "2"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("stages of a pipeline that are processes", result.stderr)
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0"):
            result = self.run_command(self.train_arguments(device="cuda", config=config),
                                      launcher=[*support.options.mpiexec.split(), "2"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("have one GPU between them", result.stderr)

    def test_the_plan_names_the_device_and_holds_its_budget(self):
        result = self.train(device="cuda", dry_run=True)
        self.assertRegex(result.stdout, r"device +CUDA, \d+ GPU")
        result = self.run_command(self.train_arguments(device="cuda", device_memory="100KiB"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("--device-memory", result.stderr)


def gpu_is_there():
    with tempfile.TemporaryDirectory() as folder:
        probe = CudaTrain()
        probe.folder = pathlib.Path(folder)
        result = probe.run_command(probe.train_arguments(device="cuda", dry_run=True))
    return "no GPU" not in result.stderr


if __name__ == "__main__":
    support.options.zero3d = sys.argv[sys.argv.index("--zero3d") + 1]
    if not gpu_is_there():
        print("skipped: no GPU, and no emulator of CUDA in LD_LIBRARY_PATH (tools/cuda_test.sh)")
        sys.exit(77)
    support.main()
