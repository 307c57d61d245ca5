#!/usr/bin/env python3
"""The plan that one sees before a run, --dry-run, and what a ds_config says of offload.
Usage: plan_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import re
import time

import support
from support import MODELS, options

OFFLOAD = {"stage": 3,
           "offload_optimizer": {"device": "nvme", "nvme_path": "swap", "buffer_count": 3, "pipeline_read": True, "pipeline_write": True},
           "offload_param": {"device": "cpu", "pin_memory": False}}


def plan_lines(output):
    """Without what depends on the machine and the moment."""
    return [line for line in output.splitlines()
            if re.match(r"(model|mesh|batch|data|precision|recomputation|optimizer|offload|memory) ", line) and "this process" not in line]


class DryRun(support.CommandTest):
    def test_prints_the_plan_of_the_run_and_makes_nothing(self):
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0})
        for more in ({}, {"ranks": 2}, {"ranks": 2, "device_memory": "2MiB"}, {"recompute": 1}):
            with self.subTest(more):
                run = self.train(config=config, **more)
                dry = self.train(config=config, dry_run=True, metrics=self.folder / "metrics.jsonl", export=self.folder / "out",
                                 trace=self.folder / "trace.json", **more)
                self.assertEqual(plan_lines(dry.stdout), plan_lines(run.stdout))
                self.assertRegex(dry.stdout, "(?m)^dry run ")
                self.assertNotIn("step ", dry.stdout)
                self.assertEqual([p.name for p in self.folder.iterdir()], ["ds.json"])

    def test_under_mpi(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        launcher = [*options.mpiexec.split(), "2"]
        under = self.succeed(self.train_arguments(dry_run=True), launcher=launcher)
        self.assertEqual(plan_lines(under.stdout), plan_lines(self.train(dry_run=True, ranks=2).stdout))

    def giant(self):
        folder = self.folder / "giant"
        folder.mkdir()
        config = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
        config.update(hidden_size=65536, intermediate_size=262144, num_hidden_layers=200, vocab_size=512)
        (folder / "config.json").write_text(json.dumps(config))
        return {"model": folder, "from_scratch": True}

    def test_of_a_model_larger_than_any_machine(self):
        giant = self.giant()
        begin = time.monotonic()
        result = self.train(dry_run=True, **giant)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertRegex(result.stdout, r"planned per rank: [\d.]+ TiB \(")
        self.assertRegex(result.stderr, "warning .*this machine does not hold the run: the plan needs")
        refused = self.run_command(self.train_arguments(**giant))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("zero3d: the plan needs", refused.stderr)

    def test_says_when_a_budget_is_too_small(self):
        for more, words in (({"device_memory": "300KiB"}, ("each rank's device", "offload_optimizer", "--recompute", "--device-memory")),
                            ({"host_memory": "50"}, ("each rank's host", "nvme", "buffer_count", "sub_group_size", "--host-memory"))):
            result = self.run_command(self.train_arguments(dry_run=True, **more))
            self.assertEqual(result.returncode, 1, result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)


class Offload(support.CommandTest):
    def test_the_plan_says_what_leaves_the_device(self):
        config = self.config(zero_optimization=OFFLOAD, activation_checkpointing={"cpu_checkpointing": True}, zero3d={"checksums": True})
        output = self.train(config=config, dry_run=True).stdout
        for line in ("offload   masters, moments and gradients on a drive (swap) through 3 buffers of pinned host memory, read ahead, "
                     "written behind",
                     "offload   shards of parameters in host memory",
                     "offload   what forward keeps for recomputation in pinned host memory",
                     "offload   requests of 1.00 MiB, 8 under way, with checksums"):
            self.assertIn(line + "\n", output)
        self.assertRegex(output, r"planned per rank on drives: [\d.]+ MiB \(gradients [\d.]+ KiB, optimizer states [\d.]+ MiB")
        plain = self.train(dry_run=True).stdout
        self.assertNotIn("offload ", plain)
        self.assertNotIn("drives", plain)

    def test_the_plan_says_where_parameters_lie(self):
        def plan(**param):
            zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {"nvme_path": "swap", **param}}
            return self.train(config=self.config(zero_optimization=zero), dry_run=True).stdout
        self.assertRegex(plan(device="cpu"), r"on the host: .*[(,] ?parameters 5\d\d\.\d\d KiB")
        self.assertRegex(plan(device="cpu", pin_memory=False), r"on the host: .*pageable 5\d\d\.\d\d KiB \(parameters")
        output = plan(device="nvme", max_in_cpu=0)
        self.assertRegex(output, r"on drives: 5\d\d\.\d\d KiB \(parameters 5\d\d\.\d\d KiB\)")
        self.assertNotRegex(output, r"per rank: [^(]*\(.*(?<!gathered )parameters")

    def test_validate_says_it_too(self):
        config = self.config(zero_optimization=OFFLOAD, aio={"queue_depth": 32}, zero3d={"nvme_paths": ["/d0", "/d1"]})
        output = self.succeed(["validate", config]).stdout
        self.assertIn("offload: masters, moments and gradients on drives (/d0, /d1) through 3 buffers", output)
        self.assertIn("offload: requests of 1.00 MiB, 32 under way\n", output)
        self.assertNotIn("not implemented", output)
        plain = self.succeed(["validate", self.config(aio={"queue_depth": 32})]).stdout
        self.assertNotIn("offload:", plain)
        self.assertRegex(plain, r"(?s)without effect:.*aio.queue_depth = 32 .*only with device nvme")


if __name__ == "__main__":
    support.main()
