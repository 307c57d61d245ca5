#!/usr/bin/env python3
"""What `zero3d validate` says of a configuration and what `zero3d train` does with it are held to each other: every refusal and
every warning of a run is told by validate, and what validate lets pass starts. The configurations are those of this repository, odd
ones made here, and with --corpus DIR (or ZERO3D_CORPUS) every file of a folder.
Usage: same_words_test.py --zero3d BINARY [--corpus DIR] [TEST...]"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import support
from support import GOLDEN, MODELS, RUNS, CommandTest, environment, options

SOURCE = GOLDEN.parent.parent
HIDDEN_SIZE = 64  # of the model below
OUTSIDE = ("--data has", "this machine has")  # refusals for other reasons than the configuration

# Members of a configuration with an optimizer, unless they have one.
ODD = """
"optimizer": {"type": "AdamW", "params": {"lr": -1}}
"optimizer": {"type": "AdamW", "params": {"lr": null}}
"optimizer": {"type": "AdamW", "params": {"lr": "1e-3"}}
"optimizer": {"type": "AdamW", "params": {"lr": 1e300}}
"optimizer": {"type": "AdamW", "params": {"lr": 0}}
"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.0]}}
"optimizer": {"type": "AdamW", "params": {"betas": [-0.1, 0.9]}}
"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}
"optimizer": {"type": "AdamW", "params": {"betas": null}}
"optimizer": {"type": "AdamW", "params": {"eps": 1e39, "weight_decay": -0.1}}
"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}
"optimizer": {"type": "AdamW", "params": {"lr": {"value": 1}}}
"optimizer": {"type": "Adam", "params": {"foreach": true}}
"optimizer": {"type": "Adam", "params": {"torch_adam": true, "maximize": true}}
"optimizer": {"type": "Adam", "legacy_fusion": true}
"optimizer": {"type": "Adam", "params": {"amsgrad": true}}
"optimizer": {"type": "Adagrad", "params": {"initial_accumulator_value": -1}}
"optimizer": {"type": "Lion", "params": {"eps": 1e-8}}
"optimizer": {"type": "Lamb", "params": {"min_coeff": 11}}
"optimizer": {"type": "Muon", "params": {"momentum": 1, "ns_method": "cubic"}}
"optimizer": {"type": "Muon", "params": {"nesterov": true, "ns_method": "standard"}}
"optimizer": {"type": "Muon", "params": {"per_head_muon": true}}
"optimizer": {"type": "SGD", "params": {"lr": 0.1, "nesterov": true}}
"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}}
"optimizer": {"type": "RMSprop", "params": {"alpha": -1}}
"optimizer": {"type": "rmsprop"}
"optimizer": {"type": "OneBitAdam"}
"optimizer": {}
"optimizer": {"params": {"lr": 1}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_type": 3}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4611686018427387904}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e39}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2, 3]}}
"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": -2}}
"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 10}}
"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 100}}
"scheduler": {"type": "WarmupDecayLR", "params": {}}
"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 10, "warmup_type": "exp"}}
"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": -5}}
"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}
"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_max_mom": 1.0}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": -1e-3}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": [0, -1e-3]}}
"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": -1}}
"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": 2147483648}}
"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}, "optimizer": {"type": "RMSprop"}
"scheduler": {"type": "cosine", "params": {"total_num_steps": 10}}
"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}, "optimizer": {"type": "AdamW", "params": {"lr": -1}}
"fp16": {"enabled": true, "initial_scale_power": 4294967300}
"fp16": {"enabled": true, "initial_scale_power": 2000}
"fp16": {"enabled": true, "loss_scale": 1e39}
"fp16": {"enabled": true, "min_loss_scale": 1e39}
"fp16": {"enabled": false, "loss_scale": 1e39}
"gradient_accumulation_steps": 2147483648
"gradient_predivide_factor": 1e39
"gradient_predivide_factor": 0
"gradient_clipping": -1
"zero_optimization": {"stage": 3, "mics_shard_size": 4294967296}
"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}
"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 0}
"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}
"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "a/b/"}}
"zero_optimization": {"stage": 1, "sub_group_size": 1}
"data_types": {"grad_accum_dtype": "int8"}
"communication_data_type": "fp16"
"tensor_parallel": {"autotp_size": 2}
"steps_per_print": -3
""".strip().splitlines()


def odd_configurations():
    for members in ODD:
        optimizer = "" if '"optimizer"' in members else '"optimizer": {"type": "AdamW"}, '
        yield "{" + optimizer + '"train_micro_batch_size_per_gpu": 2, ' + members + "}"


def reviewed_configurations():
    """Those of the messages that people have read."""
    for block in (SOURCE / "tests/ds_config/messages.golden").read_text().split("\n\n"):
        lines = re.split(r"\n  (?:error|warning|train error|at start): ", block)[0]
        yield re.sub(r"   \[ranks \d+\]$", "", lines)


class SameWords(CommandTest):
    def validate(self, path, ranks):
        # A run's --steps fills this "auto" and is no claim about other numbers.
        filled = re.search(r'"total_num_steps"\s*:\s*"auto"', path.read_text(errors="replace"))
        more = ["--steps", "1"] if filled else []
        command = [options.zero3d, "validate", "--json", "--ranks", ranks, "--hidden-size", HIDDEN_SIZE, *more, path]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
        return json.loads(result.stdout)

    def start(self, path, ranks):
        """Whether a run with the configuration comes to its first step, and what it said until then."""
        foreign_drive = '"nvme_path": "/' in path.read_text(errors="replace")  # is left alone
        arguments = self.train_arguments(config=path.resolve(), steps=1, ranks=ranks, data=self.data, dry_run=foreign_drive)
        with subprocess.Popen([options.zero3d, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              cwd=self.folder, env=environment()) as process:
            started = any(line.startswith("memory") for line in process.stdout)
            if started:
                process.kill()
            return started, process.stderr.read()

    def disagreement(self, path, ranks):
        """What one of the two says and the other does not; "" when they agree."""
        told = self.validate(path, ranks)
        started, text = self.start(path, ranks)
        refusals = [entry["message"] for entry in told["errors"] or told["train_errors"]]
        warnings = [entry["message"] for entry in told["warnings"]]
        logged = [line for line in text.splitlines() if re.match(r"\[[\d:]+\] warning ", line)]
        unsaid = [line for line in logged if not any(message in line for message in warnings)]
        if unsaid:
            return f"only the run warns: {unsaid}"
        if started:
            silent = [message for message in warnings if message not in text]
            if refusals or silent:
                return f"the run starts; validate refuses {refusals}, and only it warns: {silent}"
        elif not refusals and not any(reason in text for reason in OUTSIDE):
            return f"only the run refuses: {text}"
        elif not all(message in text for message in refusals):
            return f"the run says {text}, and validate {refusals}"
        return ""

    def hold_together(self, paths, ranks=1):
        self.data = self.folder / "tokens.u16"
        self.data.write_bytes((RUNS / "tokens-257.u16").read_bytes() * 100)
        paths = list(paths)
        self.assertTrue(paths)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = zip(paths, pool.map(lambda path: self.disagreement(path, ranks), paths))
            different = {str(path): text for path, text in found if text}
        self.assertEqual(json.dumps(different, indent=1), "{}")

    def written(self, texts):
        for number, text in enumerate(texts):
            path = self.folder / f"{number:03}.json"
            path.write_text(text)
            yield path

    def test_configurations_of_the_repository(self):
        self.hold_together([*(SOURCE / "configs").glob("*.json"), *RUNS.glob("*/ds_config.json")], ranks=2)

    def test_configurations_whose_messages_are_reviewed(self):
        self.hold_together(self.written(reviewed_configurations()))

    def test_a_pipeline_of_few_micro_batches(self):
        self.hold_together(self.written(['{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "pipeline": {"stages": 2}, '
                                         f'"gradient_accumulation_steps": {count}}}' for count in (1, 2)]), ranks=4)

    def test_odd_configurations(self):
        self.hold_together(self.written(odd_configurations()))

    def test_a_corpus(self):
        folder = options.corpus or os.environ.get("ZERO3D_CORPUS")
        if not folder:
            self.skipTest("no --corpus and no ZERO3D_CORPUS")
        self.hold_together(sorted(pathlib.Path(folder).glob("*.json")))


class Validate(CommandTest):
    """What it prints."""

    def setUp(self):
        super().setUp()
        self.path = self.config(optimizer={"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}, gradient_clipping=1.0,
                                fp16={"enabled": False, "loss_scale": 128}, wall_clock_breakdown=False,
                                zero_optimization={"stage": 2, "overlap_comm": True, "contiguous_gradients": True,
                                                   "stage3_max_live_parameters": 1e9, "offload_optimizer": {"device": "cpu"}},
                                scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 10}})

    def groups(self, text):
        """Heading -> the keys under it."""
        found, keys = {}, None
        for line in text.splitlines():
            if line.startswith("  ") and keys is not None:
                keys.append(line.split(" = ")[0].strip())
            else:
                keys = found.setdefault(line.rstrip(":"), [])
        return found

    def test_a_screenful_of_what_the_file_sets(self):
        output = self.succeed(["validate", self.path]).stdout
        self.assertLess(len(output.splitlines()), 40)
        groups = self.groups(output)
        for key in ("train_micro_batch_size_per_gpu", "gradient_clipping", "optimizer.params.lr", "zero_optimization.stage",
                    "scheduler.params.warmup_num_steps", "fp16.enabled", "zero_optimization.offload_optimizer.device"):
            self.assertIn(key, groups["set by the file"])
        self.assertIn("train_batch_size", groups['derived, from options, or for "auto"'])
        self.assertEqual(set(groups["without effect"]),
                         {"fp16.loss_scale", "zero_optimization.contiguous_gradients",
                          "zero_optimization.stage3_max_live_parameters"})
        self.assertIn("only at stage 3", output)
        self.assertRegex(output, r"\n2\d\d more have their defaults; --all shows them\n$")

    def test_every_value_when_asked(self):
        output = self.succeed(["validate", "--all", self.path]).stdout
        self.assertGreater(len(output.splitlines()), 300)
        self.assertIn("bf16.enabled = false", output)

    def test_json_is_complete(self):
        record = json.loads(self.succeed(["validate", "--json", self.path]).stdout)
        self.assertEqual(set(record), {"file", "verdict", "errors", "train_errors", "warnings", "resolved"})
        self.assertFalse(record["resolved"]["bf16"]["enabled"])

    def test_a_train_error_is_no_refusal_of_the_reader(self):
        path = self.config(optimizer={"type": "AdamW", "params": {"lr": -1}})
        output = self.succeed(["validate", path]).stdout
        self.assertIn("train error: ", output)
        self.assertIn("zero3d train refuses it, 1 error", output)
        self.assertIn("1 train error", self.succeed(["validate", path, self.path]).stdout)
        record = json.loads(self.succeed(["validate", "--json", path]).stdout)
        self.assertEqual(record["verdict"], "accepted")
        self.assertEqual([entry["path"] for entry in record["train_errors"]], ["optimizer.params.lr"])

    def test_a_warning_of_a_run_is_told_once_by_it(self):
        path = self.config(scheduler={"type": "WarmupLR", "params": {"warmup_type": "cosine"}})
        self.assertEqual(self.train(config=path, ranks=3).stderr.count("warmup_type"), 1)


    def test_a_built_in_shape_instead_of_a_folder(self):
        path = self.config(zero_optimization={"stage": 2, "reduce_bucket_size": "auto"}, tensor_parallel={"autotp_size": 3})
        told = self.run_command(["validate", "--ranks", 3, "--model", "llama-tiny", path])
        self.assertIn("square of hidden size 128", told.stdout)
        self.assertIn("llama-tiny: its 4 attention heads", told.stdout)
        self.assertIn('did you mean "llama-tiny"', self.run_command(["validate", "--model", "llama-tinny", path]).stderr)


    def test_what_cannot_be_read_is_named_once(self):
        told = self.run_command(["validate", self.folder / "absent.json"]).stdout.splitlines()[0]
        self.assertEqual(told.count("absent.json"), 1, told)


class Command(CommandTest):
    def test_version_and_help(self):
        self.assertRegex(self.succeed(["--version"]).stdout, r"^zero3d \d+\.\d+\.\d+\n$")
        alone = self.succeed([]).stdout
        self.assertEqual(alone, self.succeed(["--help"]).stdout)
        for word in ("train", "validate", "--version"):
            self.assertIn(word, alone)
        self.assertEqual(self.run_command(["trian"]).returncode, 2)


def take_corpus():
    """--corpus DIR, before the other options are read."""
    options.corpus = ""
    if "--corpus" in sys.argv:
        place = sys.argv.index("--corpus")
        options.corpus = sys.argv[place + 1]
        del sys.argv[place:place + 2]


if __name__ == "__main__":
    take_corpus()
    support.main()
