#!/usr/bin/env python3
"""Sequence parallelism as the command takes it: from the file and by --sp, the table, what is refused, exports, resumed runs, and threads
against processes. Usage: sequence_parallel_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import subprocess

import support
from support import environment, options, read_lines, read_safetensors


class SequenceParallel(support.CommandTest):
    def run_anyway(self, *arguments):
        command = [options.zero3d, *[str(part) for part in arguments]]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, cwd=self.folder)

    def losses(self, name, launcher=None, **more):
        metrics = self.folder / f"{name}.jsonl"
        arguments = self.train_arguments(metrics=metrics, **more)
        self.succeed(arguments, **({"launcher": launcher} if launcher else {}))
        return [(line["loss"], line["grad_norm"]) for line in read_lines(metrics) if "grad_norm" in line]

    def test_validate_and_train_say_the_same_of_the_mesh(self):
        config = self.config(train_batch_size=8, train_micro_batch_size_per_gpu=2, sequence_parallel_size=2)
        run = self.train(config=config, ranks=4)
        validated = self.run_anyway("validate", config, "--ranks", 4)
        self.assertEqual(validated.returncode, 0, validated.stdout + validated.stderr)
        for text in (run.stdout, validated.stdout):
            self.assertIn("4 ranks = dp 2 x tp 1 x pp 1 x sp 2", text)
            self.assertIn("pp 0  dp 0 sp 0: rank 0  dp 0 sp 1: rank 1  dp 1 sp 0: rank 2  dp 1 sp 1: rank 3", text)
        self.assertIn("8 = micro 2 x accumulation 2 x dp 2", run.stdout)

    def test_the_option_wins_over_the_file(self):
        run = self.train(config=self.config(sequence_parallel_size=2), ranks=4, sp=4, dry_run=True)
        self.assertIn("dp 1 x tp 1 x pp 1 x sp 4", run.stdout)
        self.assertIn("sequence_parallel_size: is 2, and --sp says 4: --sp is heeded", run.stderr)

    def test_heads_that_cannot_be_dealt_are_refused_before_the_start(self):
        config = self.config()
        for arguments in (self.train_arguments(config=config, ranks=3, sp=3),
                          ("validate", config, "--ranks", 3, "--sp", 3, "--model", support.MODELS / "gpt2-tiny")):
            run = self.run_anyway(*arguments)
            self.assertIn("attention heads cannot be dealt evenly to sp 3 ranks", run.stdout + run.stderr)
            self.assertFalse(arguments[0] == "train" and run.returncode == 0)

    def test_exports_evaluates_generates_and_goes_on_as_one_rank(self):
        one = self.losses("one", steps=4, export=self.folder / "out-1")
        shared = self.losses("shared", steps=4, ranks=2, sp=2, export=self.folder / "out-2", generate="In", generate_tokens=4,
                             eval_data=support.RUNS / "tokens-257.u16", eval_interval=2)
        for (want, _), (have, _) in zip(one, shared):
            self.assertAlmostEqual(want, have, delta=1e-5 * want)
        shapes = [{name: value[:2] for name, value in read_safetensors(self.folder / out / "model.safetensors").items()}
                  for out in ("out-1", "out-2")]
        self.assertEqual(*shapes)
        self.losses("first", steps=2, ranks=2, sp=2, save=self.folder / "saved")
        again = self.losses("again", steps=4, ranks=2, sp=2, resume=self.folder / "saved")
        self.assertEqual(again[-2:], shared[-2:])

    def test_threads_and_processes_agree_to_the_bit(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0,
                                                "offload_optimizer": {"device": "cpu"}}, sequence_parallel_size=2)
        for name, more in {"replicas": {}, "stages": {"pp": 2}}.items():
            with self.subTest(name):
                threads = self.losses(f"{name}-threads", config=config, steps=3, ranks=4, **more)
                processes = self.losses(f"{name}-processes", config=config, steps=3,
                                        launcher=[*options.mpiexec.split(), "4"], **more)
                self.assertEqual(threads, processes)


if __name__ == "__main__":
    support.main()
