#!/usr/bin/env python3
"""The plan that one sees before a run, --dry-run, and what a ds_config says of offload.
Usage: plan_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import re
import shutil
import time

import support
from support import MODELS, options

OFFLOAD = {"stage": 3,
           "offload_optimizer": {"device": "nvme", "nvme_path": "swap", "buffer_count": 3, "pipeline_read": True, "pipeline_write": True},
           "offload_param": {"device": "cpu", "pin_memory": False}}


def plan_lines(output):
    """Without what depends on the machine and the moment."""
    return [line for line in output.splitlines()
            if re.match(r"(model|mesh|batch|data|precision|recomputation|optimizer|offload|tiles|memory) ", line) and "this process" not in line]


class DryRun(support.CommandTest):
    def test_prints_the_plan_of_the_run_and_makes_nothing(self):
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0})
        for more in ({}, {"ranks": 2}, {"ranks": 2, "device_memory": "2MiB"}, {"recompute": 1}):
            with self.subTest(more):
                run = self.train(config=config, export=self.folder / "out", **more)
                shutil.rmtree(self.folder / "out")
                dry = self.train(config=config, dry_run=True, metrics=self.folder / "metrics.jsonl", export=self.folder / "out",
                                 trace=self.folder / "trace.json", **more)
                self.assertEqual(plan_lines(dry.stdout), plan_lines(run.stdout.split("\nsteps ")[0]))
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
        """What to change, and a number that is enough: both budgets are wrong, and each is named once."""
        to_nvme = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(self.folder)},
                   "offload_param": {"device": "nvme", "nvme_path": str(self.folder)}}
        for zero, device, host in (
                ({"stage": 0}, ("ZeRO stage 3 with offload_optimizer", "--recompute"), ()),
                ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, ("ZeRO stage 3 with offload_param",), ("nvme",)),
                ({"stage": 3}, ("offload_optimizer", "offload_param"), ()),
                (to_nvme, ("--recompute",), ())):
            config = self.config(zero_optimization=zero)
            budgets = {"device_memory": "50KiB", "host_memory": "50"}
            for name, words in (("device", device), ("host", host)):
                with self.subTest(zero, budget=name):
                    result = self.run_command(self.train_arguments(config=config, export=self.folder / "out", **budgets))
                    self.assertEqual(result.returncode, 1, result.stderr)
                    for word in (f"each rank's {name}", *words):
                        self.assertIn(word, result.stderr)
                    if zero is to_nvme:
                        self.assertNotIn("offload", result.stderr)
                    budgets[f"{name}_memory"] = re.search(rf"raise it to (\w+) with --{name}-memory", result.stderr)[1]
            with self.subTest(zero, budgets=budgets):
                self.train(config=config, export=self.folder / "out", **budgets)

    def test_the_host_budget_is_what_is_taken(self):
        """The peak of host memory is the plan's, to 3 %, whether or not the run exports."""
        tables = {"K": 1 << 10, "M": 1 << 20, "": 1}
        def size(text):
            number, unit = re.match(r"([\d.]+) ([KM]?)i?B", text).groups()
            return float(number) * tables[unit]
        for zero in ({"stage": 2, "offload_optimizer": {"device": "cpu"}},
                     {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}):
            for more in ({}, {"export": self.folder / "out"}, {"save": self.folder / "saved"}):
                with self.subTest(zero, more=more):
                    output = self.train(config=self.config(zero_optimization=zero, bf16={"enabled": True}), **more).stdout
                    planned = size(re.search(r"planned per rank on the host: ([\d.]+ \w+)", output)[1])
                    peak = size(re.search(r"host staging ([\d.]+ \w+) per rank", output)[1])
                    self.assertLessEqual(peak, planned * 1.001)
                    self.assertGreaterEqual(peak, planned * 0.965)


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


class Tiles(support.CommandTest):
    """A model whose head with its logits is by far its largest layer."""

    def wide(self, **keys):
        folder = self.folder / "wide"
        folder.mkdir(exist_ok=True)
        config = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
        config.update(hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=16384, tie_word_embeddings=False)
        (folder / "config.json").write_text(json.dumps(config))
        place = {"device": "cpu"}
        zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 1000,
                "offload_optimizer": place, "offload_param": place}
        return {"model": folder, "from_scratch": True, "config": self.config(zero_optimization=zero, zero3d=keys)}

    def test_are_cut_where_the_budget_asks_for_it(self):
        run = self.train(device_memory="32MiB", **self.wide())
        self.assertNotIn("tiles ", run.stdout)
        uncut = self.metrics(**self.wide())
        self.assertNotIn("tiles", uncut[-1])
        # Table or head: 2 MiB gathered, 2 MiB for each of two buckets, and logits of 2 MiB.
        run = self.train(device_memory="4MiB", metrics=self.folder / "cut.jsonl", **self.wide())
        tiles = re.search("(?m)^tiles +token table and head with its logits in (\\d+) by the vocabulary; the largest has [\\d,]+ parameters, "
                          "[\\d.]+ [KM]iB$", run.stdout)
        self.assertTrue(tiles, run.stdout)
        cut = support.read_lines(self.folder / "cut.jsonl")
        self.assertEqual(cut[-1]["tiles"], {"linear": 1, "head": int(tiles.group(1))})
        for plain, record in zip(uncut, cut):
            self.assertAlmostEqual(plain["loss"], record["loss"], delta=1e-6 * plain["loss"])
        peak = re.search("peak +device ([\\d.]+) MiB", run.stdout)
        self.assertLessEqual(float(peak.group(1)), 4.0)

    def test_are_as_the_file_says(self):
        refused = self.run_command(self.train_arguments(device_memory="4MiB", **self.wide(linear_tiles=1, head_tiles=1)))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("head_tiles", refused.stderr)
        records = self.metrics(**self.wide(linear_tiles=2, head_tiles=3))
        self.assertEqual(records[-1]["tiles"], {"linear": 2, "head": 3})
        none = self.run_command(self.train_arguments(device_memory="100KiB", **self.wide()))
        self.assertEqual(none.returncode, 1)
        self.assertIn("no cut of its layers", none.stderr)
        for bad in (-1, "many", 1.5):
            result = self.run_command(self.train_arguments(**self.wide(head_tiles=bad)))
            self.assertNotEqual(result.returncode, 0, bad)
            self.assertIn("zero3d.head_tiles", result.stderr)

    def test_export_the_files_of_the_uncut_model(self):
        files = []
        for keys in ({}, {"linear_tiles": 3, "head_tiles": 2}):
            folder = self.folder / f"out{len(files)}"
            still = {"type": "AdamW", "params": {"lr": 0.0, "weight_decay": 0.0}}
            self.train(**dict(self.wide(**keys), export=folder, steps=1,
                              config=self.config(optimizer=still, zero_optimization={"stage": 3}, zero3d=keys)))
            files.append({path.name: path.read_bytes() for path in folder.iterdir()})
        self.assertIn("model.safetensors", files[0])
        self.assertEqual(files[0], files[1])

    def test_on_mpi_ranks_agree(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        under = self.metrics(ranks_under_mpi=2, device_memory="4MiB", **self.wide())
        threads = self.metrics(ranks=2, device_memory="4MiB", **self.wide())
        self.assertEqual([r["loss"] for r in under], [r["loss"] for r in threads])
        self.assertEqual(under[-1]["tiles"], threads[-1]["tiles"])


if __name__ == "__main__":
    support.main()
