#!/usr/bin/env python3
"""What `zero3d train` does with its options. Usage: command_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import fcntl
import json
import math
import os
import pathlib
import pty
import re
import shutil
import socket
import stat
import subprocess
import time
import unittest

import support
from support import MODELS, CommandTest, environment, options, read_lines, read_safetensors, without_times, write_safetensors


class Metrics(CommandTest):
    def test_a_line_per_step_with_all_fields(self):
        records = self.metrics(steps=3, ranks=2)
        self.assertEqual([r["step"] for r in records], [1, 2, 3])
        for record in records:
            self.assertEqual(set(record), {"kind", "step", "loss", "ignored_micro_batches", "grad_norm", "clip_factor", "lr", "loss_scale", "skipped", "tokens",
                                           "seconds", "tokens_per_second"})
            self.assertEqual(record["kind"], "train")
            self.assertEqual(record["tokens"], 2 * 2 * 16)
            self.assertFalse(record["skipped"])
            self.assertAlmostEqual(record["tokens_per_second"], record["tokens"] / record["seconds"],
                                   delta=1e-3 * record["tokens_per_second"])

    def test_the_clip_factor_is_what_brings_the_norm_to_the_maximum(self):
        for record in self.metrics(config=self.config(gradient_clipping=0.25), steps=3, ranks=2):
            self.assertGreater(record["grad_norm"], 0.25)
            self.assertAlmostEqual(record["clip_factor"], 0.25 / (record["grad_norm"] + 1e-6), places=9)
        self.assertEqual(self.metrics(config=self.config(gradient_clipping=0), steps=1)[0]["clip_factor"], 1)

    def test_numbers_that_are_not_finite_are_null(self):
        config = self.config(fp16={"enabled": True, "initial_scale_power": 32, "hysteresis": 1})
        path = self.folder / "metrics.jsonl"
        self.run_command(self.train_arguments(config=config, steps=1, metrics=path))
        record = read_lines(path)[0]
        self.assertTrue(record["skipped"])
        self.assertIsNone(record["grad_norm"])
        self.assertEqual(record["loss_scale"], 2.0 ** 32)

    def test_the_resolved_configuration_lies_beside_them_and_trains_the_same(self):
        config = self.config(zero_optimization={"stage": 2}, gradient_accumulation_steps=3)
        first = self.metrics(config=config, ranks=2)
        resolved = self.folder / "again.json"
        shutil.copy(self.folder / "metrics.jsonl.ds_config.json", resolved)
        self.assertEqual(json.loads(resolved.read_text())["train_batch_size"], 12)
        self.assertEqual(without_times(first), without_times(self.metrics(config=resolved, ranks=2)))

    def test_an_export_whose_place_was_taken_meanwhile_is_kept(self):
        place = self.folder / "exported"
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        command = [options.zero3d, *map(str, self.train_arguments(steps=3, export=place, metrics=pipe))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as run:
            with open(pipe) as metrics:  # it waits here until it has begun
                metrics.readline()
                place.mkdir()
                (place / "notes.txt").write_text("mine")
                metrics.read()
            _, errors = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1, errors)
        self.assertIn(f"the complete export is kept as {place}.kept", errors)
        self.assertEqual((place / "notes.txt").read_text(), "mine")
        self.succeed(self.train_arguments(model=f"{place}.kept", steps=1))

    def test_evaluation_counts_no_sample_twice(self):
        tokens = support.RUNS / "tokens-61.u16"
        short = self.folder / "short.u16"
        short.write_bytes(tokens.read_bytes()[:2 * (3 * 16 + 1)])  # three samples
        losses = []
        for rows in (1, 2, 4):
            config = self.config(train_micro_batch_size_per_gpu=rows, optimizer={"type": "AdamW", "params": {"lr": 1e-12}})
            records = self.metrics(config=config, steps=1, eval_data=short)
            losses.append(records[-1]["loss"])
        self.assertEqual(records[-1]["kind"], "eval")
        self.assertAlmostEqual(losses[0], losses[2], places=5)
        self.assertNotAlmostEqual(losses[0], losses[1], places=3)  # one batch of two: the third is not read

    def test_recomputation_changes_no_number_and_says_what_it_does(self):
        plain = self.metrics(ranks=2)
        path = self.folder / "metrics.jsonl"
        result = self.succeed(self.train_arguments(ranks=2, metrics=path, recompute=1))
        self.assertRegex(result.stdout, r"(?m)^recompute forward of (\d+) of \d+ blocks again, in \1 groups of which inputs are kept$")
        self.assertEqual(without_times(plain), without_times(read_lines(path)))
        resolved = json.loads((self.folder / "metrics.jsonl.ds_config.json").read_text())
        self.assertEqual(resolved["pipeline"]["activation_checkpoint_interval"], 1)
        self.assertNotIn("recompute", self.train(ranks=2).stdout)
        shown = self.succeed(["validate", "--recompute", "3", self.config()]).stdout
        self.assertRegex(shown, r"pipeline\.activation_checkpoint_interval = 3 +# command line: --recompute")
        for value in ("0", "-1", "x"):
            self.assertNotEqual(self.run_command(self.train_arguments(recompute=value)).returncode, 0)

    def test_evaluation_lines(self):
        records = self.metrics(steps=5, eval_data=support.RUNS / "tokens-61.u16", eval_interval=2, ranks=2)
        self.assertEqual([(r["kind"], r["step"]) for r in records],
                         [("train", 1), ("train", 2), ("eval", 2), ("train", 3), ("train", 4), ("eval", 4), ("train", 5),
                          ("eval", 5)])
        losses = [r["loss"] for r in records if r["kind"] == "eval"]
        self.assertTrue(all(0 < loss < 20 for loss in losses), losses)
        self.assertEqual(len(set(losses)), 3)


class Ranks(CommandTest):
    def test_processes_and_threads_give_the_same_bits(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        for stage in (0, 3):
            config = self.config(zero_optimization={"stage": stage}, gradient_accumulation_steps=2)
            threads = self.metrics(config=config, ranks=4, steps=3)
            processes = self.metrics(config=config, ranks_under_mpi=4, steps=3)
            self.assertEqual(without_times(threads), without_times(processes))

    def test_pipelines_give_the_bits_of_their_replicas_by_threads_and_processes(self):
        for stage in (0, 3):
            config = self.config(zero_optimization={"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
                                 gradient_accumulation_steps=4)
            alone = without_times(self.metrics(config=config, ranks=2, steps=2, eval_data=support.RUNS / "tokens-257.u16"))
            for schedule in ("1f1b", "interleaved", "zb-v"):
                staged = self.metrics(config=config, ranks=4, steps=2, pp=2, schedule=schedule, eval_data=support.RUNS / "tokens-257.u16")
                self.assertEqual(without_times(staged), alone, schedule)
            if options.mpiexec:
                processes = self.metrics(config=config, ranks_under_mpi=4, steps=2, pp=2, eval_data=support.RUNS / "tokens-257.u16")
                self.assertEqual(without_times(processes), alone)

    def test_a_pipelines_schedule_is_drawn(self):
        config = self.config(gradient_accumulation_steps=4)
        picture = self.folder / "schedule.svg"
        shown = self.succeed(self.train_arguments(config=config, ranks=2, pp=2, print_schedule=picture, trace=self.folder / "trace.json"))
        self.assertIn("stage 0   F0 F1 .  .  B0", shown.stdout)
        self.assertIn("stage 1   .  F0 B0", shown.stdout)
        self.assertIn("as it ran", picture.read_text())
        self.assertEqual(picture.read_text().count("stage 1"), 2)
        refused = self.run_command(self.train_arguments(config=config, print_schedule=picture))
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("there is one stage", refused.stderr)

    def test_a_limited_address_space_is_no_matter(self):
        limited = ["sh", "-c", 'ulimit -v 4194304; exec "$@"', "sh"]
        self.succeed(self.train_arguments(ranks=2), launcher=limited)

    def test_threads_of_a_rank_change_no_bit(self):
        config = self.config(bf16={"enabled": True}, zero_optimization={"stage": 1})
        self.assertEqual(without_times(self.metrics(config=config, ranks=2, threads=1)),
                         without_times(self.metrics(config=config, ranks=2, threads=3)))

    def test_each_rank_has_cores_of_its_own_unless_told_otherwise(self):
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            self.skipTest("one core")
        line = re.search("cores .*", self.train(ranks=2, threads=1).stdout)[0]
        bound = re.match(r"cores +rank 0 on ([\d,-]+), rank 1 on ([\d,-]+)$", line)
        if not bound:
            self.assertIn("share", line)  # a CPU quota below the number of cores
        else:
            self.assertNotEqual(bound[1], bound[2])
        self.assertIn("share", re.search("cores .*", self.train(ranks=2, no_bind=True).stdout)[0])
        self.assertIn("share", re.search("cores .*", self.train(ranks=2, threads=cores).stdout)[0])


class Families(CommandTest):
    def test_stages_agree(self):
        for model in ("gemma-tiny", "mistral-window", "qwen3-tiny"):
            records = [without_times(self.metrics(config=self.config(zero_optimization={"stage": stage}), model=model, ranks=2,
                                                  seq_len=32, data=support.RUNS / "tokens-131.u16")) for stage in (0, 3)]
            losses = [[(r["loss"], r["grad_norm"]) for r in run if "loss" in r] for run in records]
            self.assertEqual(losses[0], losses[1], model)
            self.assertEqual(len(losses[0]), 2, model)


class Parameters(CommandTest):
    def exported(self, **keywords):
        folder = self.folder / "out"
        shutil.rmtree(folder, ignore_errors=True)
        self.train(export=folder, **keywords)
        return read_safetensors(folder / "model.safetensors")

    def test_frozen_parameters_keep_their_bits(self):
        before = read_safetensors(MODELS / "gpt2-tiny" / "model.safetensors")
        after = self.exported(model="gpt2-tiny", freeze=[r"wte", r"h\.0\."], ranks=2)
        self.assertEqual(set(before), set(after))
        for name, tensor in after.items():
            self.assertEqual(tensor == before[name], bool(re.search(r"wte|h\.0\.", name)), name)

    def test_an_export_is_the_same_file_at_every_stage(self):
        orders = []
        for freeze in (None, ["attn"]):
            files = set()
            for stage in (0, 2, 3):
                config = self.config(zero_optimization={"stage": stage, "stage3_param_persistence_threshold": 200})
                orders.append(list(self.exported(config=config, model="gpt2-tiny", freeze=freeze, ranks=2, steps=1)))
                files.add((self.folder / "out" / "model.safetensors").read_bytes())
            self.assertEqual(len(files), 1, freeze)
        self.assertEqual(orders, [orders[0]] * len(orders))

    def test_weight_decay_spares_what_is_named(self):
        config = self.config(optimizer={"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.5}})
        plain = self.exported(config=config, steps=1)
        spared = self.exported(config=config, steps=1, no_decay="norm")
        for name in plain:
            self.assertEqual(plain[name] == spared[name], "norm" not in name, name)

    def test_an_export_loads_and_exports_the_same_again(self):
        for dtype, keys in (("F32", {}), ("BF16", {"bf16": {"enabled": True}}), ("F16", {"fp16": {"enabled": True}})):
            with self.subTest(dtype=dtype):
                config = self.config(zero_optimization={"stage": 3}, **keys)
                first = self.exported(config=config, model="llama-tied-rope3", ranks=2, data=support.RUNS / "tokens-131.u16")
                self.assertEqual({tensor[0] for tensor in first.values()}, {dtype})
                kept = self.folder / "first"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.move(self.folder / "out", kept)
                idle = self.config("idle.json", optimizer={"type": "AdamW", "params": {"lr": 0, "weight_decay": 0}}, **keys)
                again = self.exported(config=idle, model=kept, data=support.RUNS / "tokens-131.u16", steps=1)
                self.assertEqual(first, again)
                self.assertEqual((kept / "config.json").read_text(), (self.folder / "out" / "config.json").read_text())

    def test_an_export_keeps_what_came_with_the_model(self):
        model = self.folder / "model"
        shutil.copytree(MODELS / "mistral-window", model)
        config = json.loads((model / "config.json").read_text())
        config.update(pad_token_id=5, partial_rotary_factor=0.5, custom={"a": [1, None]})
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer.json").write_text("tokens")
        (model / "generation_config.json").write_text("{}")
        (model / "README.md").write_text("about")
        result = self.train(model=model, export=self.folder / "out", data=support.RUNS / "tokens-131.u16", ranks=2)
        self.assertEqual(result.stderr.count("partial_rotary_factor 0.5 has no effect"), 1, result.stderr)
        self.assertIn(f"left in {model}: 'README.md'\n", result.stdout)
        written = json.loads((self.folder / "out" / "config.json").read_text())
        for key in ("pad_token_id", "partial_rotary_factor", "custom", "sliding_window", "transformers_version"):
            self.assertEqual(written[key], config[key], key)
        for name in ("tokenizer.json", "generation_config.json"):
            self.assertEqual((self.folder / "out" / name).read_text(), (model / name).read_text())

    def test_an_untied_head_is_trained_and_exported_as_one(self):
        model = self.folder / "model"
        shutil.copytree(MODELS / "llama-tied-rope3", model)
        tensors = read_safetensors(model / "model.safetensors")
        dtype, shape, raw = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = (dtype, shape, raw[4:] + raw[:4])
        write_safetensors(model / "model.safetensors", tensors)
        frozen = self.exported(model=model, freeze=".*norm.*", data=support.RUNS / "tokens-131.u16", steps=1)
        self.assertNotEqual(frozen["lm_head.weight"][2], frozen["model.embed_tokens.weight"][2])
        self.assertFalse(json.loads((self.folder / "out" / "config.json").read_text())["tie_word_embeddings"])

    def test_from_scratch_takes_the_shape_and_draws_the_weights(self):
        loaded = self.metrics(steps=1)[0]["loss"]
        drawn = self.metrics(steps=1, from_scratch=True, seed=1)[0]["loss"]
        other = self.metrics(steps=1, from_scratch=True, seed=2)[0]["loss"]
        self.assertEqual(len({loaded, drawn, other}), 3)
        self.assertAlmostEqual(drawn, math.log(257), delta=0.3)


class Outputs(CommandTest):
    def spans(self, **keywords):
        path = self.folder / "trace.json"
        arguments = self.train_arguments(config=self.config(zero_optimization={"stage": 3}), trace=path)
        self.succeed(arguments + keywords.get("more", []), launcher=keywords.get("launcher", ()))
        trace = json.loads(path.read_text())
        return trace["traceEvents"] if isinstance(trace, dict) else trace

    def test_a_trace_holds_the_streams_of_all_ranks(self):
        launchers = [("threads", (), ["--ranks", "2"])]
        if options.mpiexec:
            launchers.append(("MPI", [*options.mpiexec.split(), "2"], []))
        for name, launcher, more in launchers:
            with self.subTest(name):
                spans = [e for e in self.spans(launcher=launcher, more=more) if e["ph"] == "X"]
                self.assertEqual({e["pid"] for e in spans}, {0, 1})
                names = " ".join({e["name"] for e in spans})
                for part in ("forward block 0", "backward block 1", "all_gather", "reduce_scatter"):
                    self.assertIn(part, names)
                self.assertTrue(all(e["dur"] >= 0 for e in spans))

    def test_text_from_the_trained_model(self):
        result = self.train(generate="In the beginning", generate_tokens=20, seed=3, ranks=2)
        sample = re.search("--- sample ---\n(.*)\n-----", result.stdout, re.DOTALL)
        self.assertTrue(sample[1].startswith("In the beginning"), sample[1])
        again = self.train(generate="In the beginning", generate_tokens=20, seed=3, ranks=2)
        self.assertIn(sample[0], again.stdout)

    def test_plain_lines_when_not_a_terminal(self):
        output = self.train(steps=100).stdout
        self.assertNotIn("\r", output)
        self.assertNotIn("\x1b", output)
        lines = re.findall(r"^step (\d+)/100  loss [\d.]+  norm [\d.]+ ", output, re.MULTILINE)
        self.assertEqual((lines[0], lines[-1]), ("1", "100"))
        self.assertLessEqual(len(lines), 25)
        for word in ("tokens/s", "forward", "backward", "reduce", "optimizer", "device", "process"):
            self.assertIn(word, output)

    def test_a_bar_on_a_terminal(self):
        controller, terminal = pty.openpty()
        command = [options.zero3d, *map(str, self.train_arguments(steps=5))]
        with subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL, cwd=self.folder,
                              env=environment()) as process:
            os.close(terminal)
            output = b""
            try:
                while chunk := os.read(controller, 65536):
                    output += chunk
            except OSError:  # the end of a terminal
                pass
        os.close(controller)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(output.count(b"\r["), 5)
        self.assertIn(b"5/5", output)

    def test_an_export_follows_the_update_of_the_host(self):
        """One rank gathers nothing that would wait for it; the checker sees that nothing else orders the two."""
        config = self.config(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}})
        checked = self.run_command(self.train_arguments(config=config, export=self.folder / "out"), launcher=["env", "ZERO3D_CHECK=1"])
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_loss_curve_falls(self):
        text = self.folder / "text"
        text.write_text("A loss that falls needs text that can be learnt.\n" * 40)
        output = self.train(steps=40, config=self.config(optimizer={"type": "AdamW", "params": {"lr": 1e-2}}),
                            data=text, data_format="text").stdout
        rows = re.findall(r"^ +[\d.]+ \|(.*)$", output, re.MULTILINE)
        self.assertEqual(len(rows), 10)
        self.assertEqual(rows[0].find("*"), 0)
        self.assertIn("step 1 to 40", output)

    def test_the_process_stays_within_its_plan(self):
        folder = self.folder / "shape"
        folder.mkdir()
        config = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
        config.update(hidden_size=512, intermediate_size=1408, num_hidden_layers=6, vocab_size=8192)
        (folder / "config.json").write_text(json.dumps(config))
        result = self.train(model=folder, from_scratch=True, ranks=2, config=self.config(zero_optimization={"stage": 1}))

        def size(pattern):
            number, unit = re.search(pattern + r" ([\d.]+) ([KMG]iB)", result.stdout).groups()
            return float(number) * {"KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30}[unit]
        planned = size("planned for this process:")
        used = size("staging .* process")
        self.assertLess(abs(planned - used) / used, 0.1, result.stdout)

    def test_micro_batches_are_read_as_they_are_used(self):
        config = self.config(gradient_accumulation_steps=2 ** 31 - 1)
        with subprocess.Popen([options.zero3d, *map(str, self.train_arguments(config=config))], stdout=subprocess.DEVNULL,
                              env=environment()) as process:
            try:
                with self.assertRaises(subprocess.TimeoutExpired):
                    process.wait(3)
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            finally:
                process.kill()
        self.assertLess(int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]), 60000)

    def test_help_reads_well(self):
        text = self.succeed(["train", "--help"]).stdout
        for option in ("--config", "--model", "--from-scratch", "--data", "--data-format", "--order", "--seq-len", "--steps",
                       "--ranks", "--threads", "--seed", "--freeze", "--no-decay", "--metrics", "--export", "--eval-data",
                       "--eval-interval", "--generate", "--trace", "--device-memory", "--host-memory", "--log-level", "--no-bind"):
            self.assertIn(option, text)


class BenchIo(CommandTest):
    def bench(self, *arguments):
        return ["bench", "io", "--path", self.folder, "--size", "1MiB", "--block-size", "16KiB,64KiB", "--queue-depth", "1,4", *arguments]

    def test_prints_a_table_and_a_section_and_leaves_nothing(self):
        for arguments in (("--buffered",), ("--buffered", "--port", "threads", "--threads", "2")):
            result = self.succeed(self.bench(*arguments))
            rows = [line.split() for line in result.stdout.splitlines() if " buffered " in line]
            self.assertEqual([(int(row[2]), int(row[3])) for row in rows], [(16384, 1), (16384, 4), (65536, 1), (65536, 4)])
            self.assertTrue(all(float(row[4]) > 0 and float(row[5]) > 0 for row in rows))
            aio = json.loads("{" + result.stdout[result.stdout.index('"aio"'):] + "}")["aio"]
            self.assertIn((aio["block_size"], aio["queue_depth"]), [(int(row[2]), int(row[3])) for row in rows])
            self.assertEqual(result.stderr.count("bench io: "), 4)
            if "threads" in arguments:
                self.assertEqual({row[0] for row in rows}, {"threads"})
                self.assertEqual(aio["intra_op_parallelism"], 2)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_refuses_what_it_cannot_write(self):
        for arguments, cause in ((["--path", "/no/such"], "expected a folder that can be written"),
                                 (["--path", "/proc"], "cannot create a folder"),
                                 (["--path", self.folder, "--size", "4096TiB"], "are free (No space left on device)"),
                                 (["--path", self.folder, "--block-size", "5000"], "aio.block_size is 5000; expected a multiple of 4096")):
            with self.subTest(cause):
                size = [] if "--size" in arguments else ["--size", "64KiB"]
                result = self.run_command(["bench", "io", "--buffered", *size, *arguments])
                self.assertEqual(result.returncode, 1)
                self.assertIn(cause, result.stderr)


class Places(CommandTest):
    """Where outputs go."""

    def launch(self, arguments, **keywords):
        return subprocess.run([options.zero3d, *map(str, arguments)], cwd=self.folder, env=environment(), timeout=60, check=False,
                              **keywords)

    def outputs(self, path):
        return {"metrics": path, "trace": path}

    def test_devices_and_links_stay_what_they_are(self):
        null = self.folder / "null"
        null.symlink_to("/dev/null")
        for path in ("/dev/null", null):
            self.train(**self.outputs(path))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        self.assertTrue(null.is_symlink())
        self.assertFalse(os.path.exists("/dev/null.ds_config.json"))
        (self.folder / "far").mkdir()
        for name in ("metrics", "trace"):
            (self.folder / name).symlink_to(f"far/{name}")
        self.train(metrics=self.folder / "metrics", trace=self.folder / "trace")
        self.assertEqual(len(read_lines(self.folder / "far" / "metrics")), 2)
        self.assertIn("traceEvents", json.loads((self.folder / "far" / "trace").read_text()))
        self.assertEqual({p.name for p in self.folder.iterdir() if p.is_symlink()}, {"null", "metrics", "trace"})

    def test_metrics_among_what_is_printed(self):
        for path in ("/dev/stdout", self.folder / "log"):
            with open(self.folder / "log", "wb") as log:
                result = self.launch(self.train_arguments(metrics=path), stdout=log)
            self.assertEqual(result.returncode, 0)
            lines = (self.folder / "log").read_text().splitlines()
            self.assertEqual([json.loads(line)["step"] for line in lines if line.startswith("{")], [1, 2])
            self.assertTrue(lines[0].startswith("model "))
            self.assertTrue(any(line.startswith("step time") for line in lines))
        text = self.train(metrics="/dev/stdout", trace="/dev/stdout").stdout
        self.assertIn('{"kind": "train", "step": 2,', text)
        self.assertIn('"traceEvents"', text)

    def test_metrics_through_a_pipe(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen(["timeout", "60", "cat", pipe], stdout=subprocess.PIPE) as reader:
            self.train(metrics=pipe)
            lines = reader.stdout.read().splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], [1, 2])
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))

    def test_standard_descriptors_that_are_closed(self):
        arguments = self.train_arguments(metrics=self.folder / "metrics", trace=self.folder / "trace", export=self.folder / "out")
        for closed in ((0,), (1,), (2,), (0, 1, 2)):
            with self.subTest(closed):
                self.assertEqual(self.launch(arguments, preexec_fn=lambda: [os.close(fd) for fd in closed],
                                             stdout=None if 1 in closed else subprocess.DEVNULL).returncode, 0)
                self.assertEqual([record["step"] for record in read_lines(self.folder / "metrics")], [1, 2])
                json.loads((self.folder / "trace").read_text())

    def test_what_only_prints_needs_an_output(self):
        for arguments in (["validate", self.config()], ["config-docs"]):
            with self.subTest(arguments[0]):
                result = self.launch(arguments, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE)
                self.assertEqual(result.returncode, 1)
                self.assertIn(b"standard output is closed", result.stderr)

    def test_control_characters_of_a_configuration_are_shown_as_text(self):
        path = self.folder / "ds.json"
        path.write_text(json.dumps({"train_batch_size": 2, "zero_optimization": {"st\x1b[2Jage\n": 1}}))
        for arguments in (["validate", path], self.train_arguments(config=path)):
            with self.subTest(arguments[0]):
                result = self.run_command(arguments)
                self.assertEqual(result.returncode, 1)
                self.assertIn("st\\x1b[2Jage\\x0a", result.stdout + result.stderr)
                self.assertNotIn("\x1b", result.stdout + result.stderr)

    def test_every_value_of_several_files(self):
        paths = [self.config("first.json"), self.config("second.json", zero_optimization={"stage": 2})]
        short = self.succeed(["validate", *paths]).stdout
        self.assertEqual(len(short.splitlines()), 3)
        every = self.succeed(["validate", "--all", *paths]).stdout
        for path in paths:
            self.assertIn(f"{path}: accepted", every)
        self.assertEqual(every.count("resolved configuration:"), 2)
        self.assertIn("zero_optimization.stage = 2", every)
        self.assertTrue(every.endswith("2 files: 2 accepted, 0 refused\n"))

    def test_output_that_does_not_arrive_is_an_error(self):
        commands = (self.train_arguments(export=self.folder / "out"), ["validate", self.config()], ["config-docs"], ["--help"],
                    ["bench", "adam", "--numel", "1K", "--threads", "1", "--repeats", "1"],
                    ["bench", "io", "--path", self.folder, "--size", "64KiB", "--block-size", "4KiB", "--queue-depth", "2", "--buffered"],
                    ["bench", "muon", "--rows", "8", "--columns", "8", "--threads", "1", "--repeats", "1"],
                    ["bench", "save", "--path", self.folder, "--size", "1MB", "--repeats", "1"])
        for arguments in commands:
            with self.subTest(arguments[0]):
                with open("/dev/full", "wb") as full:
                    result = self.launch(arguments, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(result.returncode, 1)
                self.assertIn(b"standard output", result.stderr)
                read, write = os.pipe()
                os.close(read)
                result = self.launch(arguments, stdout=write, stderr=subprocess.PIPE)
                os.close(write)
                self.assertEqual(result.returncode, 1)
                self.assertIn(b"standard output", result.stderr)
        self.assertTrue((self.folder / "out" / "model.safetensors").exists())  # the work is not lost

    def test_what_killed_runs_have_left_goes_with_the_next(self):
        start = f".tmp-{re.sub('[^A-Za-z0-9.]', '_', socket.gethostname()[:64])}-"
        (self.folder / f"out{start}1-0" / "below").mkdir(parents=True)
        (self.folder / f"trace{start}1-0").write_text("killed")
        held = self.folder / f"out{start}1-1"
        elsewhere = self.folder / "out.tmp-elsewhere-1-0"
        for folder in (held, elsewhere):
            folder.mkdir()
        with_lock = os.open(held, os.O_RDONLY)
        fcntl.flock(with_lock, fcntl.LOCK_EX)
        self.train(export=self.folder / "out", trace=self.folder / "trace")
        os.close(with_lock)
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"ds.json", "out", "trace", held.name, elsewhere.name})

    def test_a_killed_run_leaves_no_file_under_a_final_name_but_its_metrics(self):
        arguments = self.train_arguments(metrics=self.folder / "metrics", trace=self.folder / "trace", export=self.folder / "out",
                                         steps=10 ** 9)
        with subprocess.Popen([options.zero3d, *map(str, arguments)], stdout=subprocess.DEVNULL, env=environment()) as process:
            deadline = time.monotonic() + 60
            while not (self.folder / "metrics").exists() or not (self.folder / "metrics").stat().st_size:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            process.kill()
        self.assertFalse((self.folder / "trace").exists() or (self.folder / "out").exists())
        self.assertGreaterEqual(len(read_lines(self.folder / "metrics")), 1)
        self.train(trace=self.folder / "trace")
        self.assertEqual([p.name for p in self.folder.iterdir() if ".tmp-" in p.name], [])


if __name__ == "__main__":
    support.main()
