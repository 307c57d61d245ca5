#!/usr/bin/env python3
"""zero3d train --save and --resume, inspect, diff and export: as a user sees them.
Usage: checkpoint_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import os
import shutil
import signal
import subprocess
import time

import support
from support import MODELS, options, read_lines, read_safetensors, without_times

STOPPED = 3  # the exit code of a run that was asked to leave


class CheckpointTest(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved"

    def stage(self, stage, **keys):
        keys.setdefault("train_micro_batch_size_per_gpu", 2)
        return self.config(name=f"z{stage}.json", zero_optimization={"stage": stage, "stage3_param_persistence_threshold": 0}, **keys)

    def records(self, name, **keywords):
        path = self.folder / name
        self.train(metrics=path, **keywords)
        return without_times(read_lines(path))


class Resume(CheckpointTest):
    def test_goes_on_where_the_run_was(self):
        for stage, ranks, more in ((0, 1, {}), (3, 2, {"bf16": {"enabled": True}})):
            with self.subTest(stage=stage):
                shutil.rmtree(self.saved, ignore_errors=True)
                run = {"config": self.stage(stage, **more), "ranks": ranks, "order": "shuffled", "seed": 5}
                straight = self.records("straight.jsonl", steps=6, export=self.folder / "a", **run)
                self.train(steps=2, save=self.saved, metrics=self.folder / "parts.jsonl", **run)
                del run["seed"]  # the checkpoint knows it
                resumed = self.records("parts.jsonl", steps=6, resume=self.saved, export=self.folder / "b", **run)
                self.assertEqual(resumed, straight)
                self.assertEqual(read_safetensors(self.folder / "a/model.safetensors"), read_safetensors(self.folder / "b/model.safetensors"))

    def test_every_family(self):
        config = self.stage(2, bf16={"enabled": True})
        for model in ("gemma-tiny", "gpt2-untied-4", "llama-tied-rope3", "mistral-window", "qwen2-tiny", "qwen3-tiny"):
            with self.subTest(model):
                vocabulary = json.loads((MODELS / model / "config.json").read_text())["vocab_size"]
                run = {"config": config, "model": model, "steps": 2, "data": support.RUNS / f"tokens-{vocabulary}.u16"}
                straight = self.records("straight.jsonl", save=self.folder / model, save_interval=1, **run)
                resumed = self.records("resumed.jsonl", resume=self.folder / model / "global_step1", save=self.folder / "again", **run)
                self.assertEqual(resumed, straight[1:])
                self.assertIn("the same", self.succeed(["diff", self.folder / "again", self.folder / model]).stdout)

    def test_on_other_ranks_stages_and_tiers(self):
        config = self.config(train_batch_size=4, train_micro_batch_size_per_gpu=1, zero_optimization={"stage": 1})
        straight = self.records("straight.jsonl", steps=4, config=config, ranks=2)
        self.train(steps=2, config=config, ranks=2, save=self.saved)
        other = self.config(name="other.json", train_batch_size=4, train_micro_batch_size_per_gpu=1,
                            zero_optimization={"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(self.folder)}})
        resumed = self.records("resumed.jsonl", steps=4, config=other, ranks=4, resume=self.saved / "global_step2")
        self.assertEqual([r["step"] for r in resumed], [3, 4])
        for a, b in zip(straight[2:], resumed):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5 * a["loss"])

    def test_records_of_steps_that_run_again_replace_the_old_ones(self):
        run = {"config": self.stage(1), "metrics": self.folder / "m.jsonl"}
        self.train(steps=3, save=self.saved, save_interval=2, **run)
        shutil.rmtree(self.saved / "global_step3")
        (self.saved / "latest").write_text("global_step2")
        self.train(steps=5, resume=self.saved, **run)
        self.assertEqual([r["step"] for r in read_lines(run["metrics"])], [1, 2, 3, 4, 5])

    def test_latest_begins_where_there_is_none(self):
        run = {"config": self.stage(1), "save": self.saved, "resume": "latest"}
        self.assertIn("the run begins", self.train(steps=2, **run).stderr)
        self.assertIn("step 2", self.train(steps=4, **run).stdout)
        done = self.train(steps=4, **run)
        self.assertIn("no step of --steps is left", done.stdout)
        self.assertEqual(sorted(p.name for p in self.saved.iterdir()), ["global_step2", "global_step4", "latest"])

    def test_intervals_and_what_is_kept(self):
        for more in ({}, {"save_async": True}):
            shutil.rmtree(self.saved, ignore_errors=True)
            self.train(config=self.stage(2), ranks=2, steps=7, save=self.saved, save_interval=2, keep_last=2, **more)
            self.assertEqual(sorted(p.name for p in self.saved.iterdir()), ["global_step6", "global_step7", "latest"])
            self.succeed(["inspect", self.saved, "--verify"])

    def test_under_mpi(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        config = self.stage(3)
        straight = self.metrics(steps=4, config=config, ranks=2)
        self.metrics(ranks_under_mpi=2, steps=2, config=config, save=self.saved)
        resumed = self.metrics(ranks_under_mpi=2, steps=4, config=config, resume=self.saved)
        self.assertEqual(without_times(resumed), without_times(straight))

    def test_says_who_wins(self):
        self.train(config=self.stage(1, gradient_clipping=1.0), steps=2, save=self.saved)
        changed = self.config(name="changed.json", train_micro_batch_size_per_gpu=4, gradient_clipping=0.5,
                              optimizer={"type": "AdamW", "params": {"lr": 5e-3}}, zero_optimization={"stage": 1})
        result = self.train(config=changed, steps=3, resume=self.saved, metrics=self.folder / "m.jsonl")
        for words in ("micro-batch is 4, and was 2", "gradient clipping is 0.5, and was 1", "optimizer lr is 0.005", "configuration wins"):
            self.assertIn(words, result.stderr)
        self.assertEqual(read_lines(self.folder / "m.jsonl")[-1]["lr"], 5e-3)
        result = self.train(config=changed, steps=3, resume=self.saved, metrics=self.folder / "m2.jsonl", override=["lr", "clipping"])
        self.assertNotIn("optimizer lr", result.stderr)
        self.assertEqual(read_lines(self.folder / "m2.jsonl")[-1]["lr"], 1e-3)
        self.assertIn("micro-batch", result.stderr)
        result = self.train(config=changed, steps=1, resume=self.saved, metrics=self.folder / "m3.jsonl", override=["steps", "batch"])
        self.assertEqual([r["step"] for r in read_lines(self.folder / "m3.jsonl")], [1])
        self.assertNotIn("micro-batch", result.stderr)

    def refused(self, *words, **keywords):
        result = self.run_command(self.train_arguments(**keywords))
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_refuses_other_data_models_and_folders(self):
        config = self.stage(1)
        self.train(config=config, steps=2, save=self.saved)
        self.refused("other data", "--seq-len", "--override data", config=config, steps=3, resume=self.saved, seq_len=8)
        self.refused("other data", "tokens like", config=config, steps=3, resume=self.saved, data=support.RUNS / "tokens-61.u16")
        self.train(config=config, steps=3, resume=self.saved, seq_len=8, override="data")
        self.refused("another model", "in the checkpoint", config=config, steps=3, resume=self.saved, model="gpt2-tiny")
        self.refused("has neither", config=config, steps=3, resume=self.folder)
        self.refused("expected a folder", "No such file", config=config, steps=3, resume=self.folder / "none")
        self.refused("expected a folder", "Not a directory", config=config, steps=3, resume=self.saved / "latest")
        self.refused("--save", config=config, steps=3, resume="latest")
        self.refused("would overwrite it", config=config, steps=3, save=MODELS / "llama-tiny")
        (self.saved / "global_step2" / "zero3d.json").unlink()
        self.refused("no whole checkpoint", config=config, steps=3, resume=self.saved)

    def test_a_save_that_fails_does_not_end_training(self):
        self.saved.mkdir()
        (self.saved / "global_step2").mkdir()
        (self.saved / "global_step2" / "notes.txt").write_text("mine")
        result = self.train(config=self.stage(1), steps=5, save=self.saved, save_interval=2)
        self.assertIn("the checkpoint of step 2 was not written", result.stderr)
        self.assertIn("the next one is tried", result.stderr)
        self.succeed(["inspect", self.saved / "global_step4"])
        (self.saved / "global_step6").mkdir()
        (self.saved / "global_step6" / "notes.txt").write_text("mine")
        result = self.run_command(self.train_arguments(config=self.stage(1), steps=6, save=self.saved))
        self.assertEqual(result.returncode, 1)
        self.assertIn("the last of the run, was not written", result.stderr)


class Stop(CheckpointTest):
    def start(self, launcher=(), **keywords):
        command = [*launcher, options.zero3d, *map(str, self.train_arguments(steps=100000, metrics=self.folder / "m.jsonl", **keywords))]
        process = subprocess.Popen(command, cwd=self.folder, env=support.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def wait_for_steps(self, count, process):
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            if (self.folder / "m.jsonl").exists() and len((self.folder / "m.jsonl").read_text().splitlines()) >= count:
                return
            time.sleep(0.01)
        self.fail("no steps: " + (process.communicate()[1] if process.poll() is not None else "timeout"))

    def test_signals_save_and_leave(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start(config=self.stage(2), ranks=2, save=self.saved)
            self.wait_for_steps(2, process)
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, STOPPED, errors)
            step = json.loads(self.succeed(["inspect", self.saved, "--json"]).stdout)["state"]["steps"]
            self.assertEqual(step, read_lines(self.folder / "m.jsonl")[-1]["step"])
            shutil.rmtree(self.saved)
            (self.folder / "m.jsonl").unlink()

    def test_a_second_signal_leaves_at_once(self):
        process = self.start(config=self.stage(2, gradient_accumulation_steps=20000), save=self.saved)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=5)
        self.assertEqual(process.returncode, -signal.SIGINT)


class Look(CheckpointTest):
    def test_inspect_tells_what_it_holds(self):
        self.train(config=self.stage(2, bf16={"enabled": True}), ranks=2, steps=3, save=self.saved, freeze="embed_tokens")
        text = self.succeed(["inspect", self.saved, "--verify", "--tensors"]).stdout
        for words in ("written by zero3d", "step 3 (0 skipped)", "dp 2 x tp 1", "1 frozen", "AdamW", "exp_avg_sq fp32", "weight bf16",
                      "embed_tokens.weight", "all of it is as it was written"):
            self.assertIn(words, text)
        path = self.saved / "global_step3" / "rank-00001.bin"
        raw = bytearray(path.read_bytes())
        raw[100] ^= 1
        path.write_bytes(raw)
        self.succeed(["inspect", self.saved])
        result = self.run_command(["inspect", self.saved, "--verify"])
        self.assertEqual(result.returncode, 1)
        self.assertIn("rank-00001.bin", result.stderr)

    def test_diff_finds_what_differs(self):
        for name, ranks, lr in (("a", 1, 1e-3), ("b", 2, 1e-3), ("c", 1, 2e-3)):
            config = self.config(train_batch_size=2, train_micro_batch_size_per_gpu=2 // ranks, zero_optimization={"stage": 3},
                                 optimizer={"type": "AdamW", "params": {"lr": lr}})
            self.train(config=config, ranks=ranks, steps=1, save=self.folder / name)
        self.assertIn("the same", self.succeed(["diff", self.folder / "a", self.folder / "a"]).stdout)
        self.assertIn("the same", self.succeed(["diff", "a", "b", "--tolerance", "1e-2"]).stdout)
        result = self.run_command(["diff", "a", "c", "--show", "3"])
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "")
        self.assertRegex(result.stdout, r"weight: \d+ of \d+ elements differ, by at most 0.00\d+; the first is element 0")
        self.assertRegex(result.stdout, r"and \d+ more")

    def test_export_equals_that_of_the_run(self):
        for model, more in (("llama-tiny", {}), ("gpt2-tiny", {"bf16": {"enabled": True}})):
            with self.subTest(model):
                shutil.rmtree(self.saved, ignore_errors=True)
                self.train(model=model, config=self.stage(3, **more), ranks=2, steps=2, save=self.saved, export=self.folder / ("run-" + model))
                out = self.folder / ("offline-" + model)
                self.succeed(["export", self.saved, "--out", out])
                ours, runs = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in (out, self.folder / ("run-" + model)))
                self.assertEqual(ours.keys(), runs.keys())
                for name in ours:
                    self.assertEqual(ours[name], runs[name], name)
        sharded = self.folder / "sharded"
        self.succeed(["export", self.saved, "--out", sharded, "--dtype", "fp32", "--max-shard", "20KB"])
        self.assertIn("model.safetensors.index.json", os.listdir(sharded))
        self.train(model=sharded, config=self.stage(0))


if __name__ == "__main__":
    support.main()
