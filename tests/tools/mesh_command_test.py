#!/usr/bin/env python3
"""Meshes as the command takes them: from the file, the section zero3d and options; the table, what is refused, threads against
processes, and what a tensor-parallel run writes.
Usage: mesh_command_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import re
import subprocess

import support
from support import MODELS, environment, options, read_lines, read_safetensors, without_times

ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}


class Meshes(support.CommandTest):
    def run_anyway(self, *arguments):
        command = [options.zero3d, *[str(part) for part in arguments]]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, cwd=self.folder)

    def validate(self, config, *more):
        return self.run_anyway("validate", config, *more)

    def test_cfg_02_the_batch_is_divided_over_replicas(self):
        config = self.config(train_batch_size=8, train_micro_batch_size_per_gpu=2)
        for tp, pp, dp, accumulation in ((1, 1, 4, 1), (2, 1, 2, 2), (1, 2, 2, 2), (2, 2, 1, 4), (4, 1, 1, 4)):
            with self.subTest(tp=tp, pp=pp):
                run = self.train(config=config, ranks=4, tp=tp, pp=pp)
                factors = f"4 ranks = dp {dp} x tp {tp} x pp {pp}"
                self.assertIn(factors, run.stdout)
                self.assertIn(f"8 = micro 2 x accumulation {accumulation} x dp {dp}", run.stdout)
                self.assertIn(factors, self.validate(config, "--ranks", 4, "--tp", tp, "--pp", pp).stdout)
        wrong = self.config(train_batch_size=8, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=1)
        refused = self.validate(wrong, "--ranks", 4, "--tp", 2).stdout
        self.assertRegex(refused, "micro.*2.*accum.*1.*2.*(dp|data-parallel)")

    def test_the_table_names_the_ranks_of_every_place(self):
        run = self.train(ranks=4, tp=2, dry_run=True)
        self.assertRegex(run.stdout, r"mesh +pp 0  dp 0: ranks 0-1  dp 1: ranks 2-3")
        self.assertNotIn("dp 0:", self.train(ranks=2, dry_run=True).stdout)

    def test_impossible_meshes_are_refused_with_the_nearest(self):
        config = self.config()
        for arguments in (("validate", config, "--ranks", 4, "--tp", 3), self.train_arguments(config=config, ranks=4, tp=3)):
            with self.subTest(arguments[0]):
                run = self.run_anyway(*arguments)
                self.assertNotEqual(run.returncode, 0)
                text = run.stdout + run.stderr
                self.assertIn("4 ranks cannot be dealt to tp 3", text)
                self.assertIn("tp 2 (dp 2) or tp 4 (dp 1) with 4 ranks, or 3 or 6 ranks", text)

    def test_the_own_section_wins_over_the_file_and_options_over_both(self):
        config = self.config(zero3d={"tp": 2}, tensor_parallel={"autotp_size": 4})
        run = self.train(config=config, ranks=4, dry_run=True)
        self.assertIn("dp 2 x tp 2", run.stdout)
        self.assertIn("autotp_size: is 4, and zero3d.tp says 2: zero3d.tp is heeded", run.stderr)
        run = self.train(config=config, ranks=4, tp=4, dry_run=True)
        self.assertIn("dp 1 x tp 4", run.stdout)
        self.assertIn("zero3d.tp: is 2, and --tp says 4: --tp is heeded", run.stderr)

    def test_heads_that_cannot_be_dealt_are_refused_before_the_start(self):
        folder = self.folder / "model"
        folder.mkdir()
        shape = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
        shape.update(num_attention_heads=6, num_key_value_heads=3, hidden_size=48, head_dim=8)
        (folder / "config.json").write_text(json.dumps(shape))
        run = self.run_anyway(*self.train_arguments(model=folder, from_scratch=True, ranks=4, tp=4))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("its 6 attention heads cannot be dealt evenly to tp 4 ranks: tp 1, 3 or 6 would do", run.stderr)
        self.assertIn("its 3 key and value heads can neither be dealt evenly", run.stderr)
        validated = self.validate(self.config(), "--ranks", 4, "--tp", 4, "--model", folder)
        self.assertIn("its 6 attention heads cannot be dealt evenly to tp 4 ranks", validated.stdout)

    def test_all_that_cannot_be_cut_is_refused_at_once(self):
        """In validate as in train: heads over tp, and blocks over the segments of a pipeline."""
        folder = self.folder / "model"
        folder.mkdir()
        shape = json.loads((MODELS / "llama-tiny" / "config.json").read_text())
        shape.update(num_attention_heads=6, num_key_value_heads=3, hidden_size=48, head_dim=8, num_hidden_layers=2)
        (folder / "config.json").write_text(json.dumps(shape))
        mesh = ("--ranks", 20, "--tp", 4, "--pp", 5)
        validated = self.validate(self.config(), *mesh, "--model", folder)
        train = self.run_anyway(*self.train_arguments(model=folder, from_scratch=True, ranks=20, tp=4, pp=5))
        for text in (validated.stdout, train.stderr):
            self.assertIn("its 6 attention heads cannot be dealt evenly to tp 4 ranks: tp 1, 3 or 6 would do", text)
            self.assertIn("its 3 key and value heads", text)
            self.assertIn("the model has 4 blocks, and the pipeline 5 segments", text)
            self.assertIn("take at most 4", text)
        listed = self.run_anyway(*self.train_arguments(ranks=2, pp=2, partition="1,1"))
        self.assertIn("uniform would give", listed.stderr)
        self.assertIn("uniform would give", self.validate(self.config(), "--ranks", 2, "--pp", 2, "--partition", "1,1", "--model",
                                                          MODELS / "llama-tiny").stdout)

    def test_a_partition_by_time_prints_its_list(self):
        run = self.train(ranks=2, pp=2, partition="time", metrics=self.folder / "time.jsonl")
        self.assertRegex(run.stdout, r"partition time \([0-9]+,[0-9]+\)")
        (listed,) = set(re.findall(r"--partition ([0-9,]+) has it again", run.stderr))
        self.assertIn(f"partition time ({listed})", run.stdout)
        self.train(ranks=2, pp=2, partition=listed, metrics=self.folder / "list.jsonl")
        self.assertEqual(without_times(read_lines(self.folder / "time.jsonl")), without_times(read_lines(self.folder / "list.jsonl")))
        dry = self.run_anyway(*self.train_arguments(ranks=2, pp=2, partition="time", dry_run=True))
        self.assertIn("a dry run measures none", dry.stderr)

    def test_freeze_evaluate_generate_and_trace_on_a_whole_mesh(self):
        """As on one rank, with layers and pipelines cut, and sequences too."""
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
        asked = self.folder / "asked.txt"
        asked.write_text(text.read_text()[:32 * 16 + 1])  # 32 samples, which one and two replicas look at alike
        records, said = [], []
        for at, mesh in enumerate(({"ranks": 1}, {"ranks": 8, "tp": 2, "pp": 2}, {"ranks": 4, "tp": 2, "pp": 2, "schedule": "zb-v"})):
            metrics, trace = self.folder / f"{at}.jsonl", self.folder / f"{at}.json"
            run = self.train(data=text, data_format="text", eval_data=asked, freeze="layers.0", generate="the quick", temperature=0,
                             generate_tokens=8, trace=trace, metrics=metrics,
                             config=self.config(train_batch_size=8, train_micro_batch_size_per_gpu=2,
                                                **({"zero3d": {"sequence_parallel": True}} if at == 2 else {})), **mesh)
            records.append([line.get("loss", line.get("eval_loss")) for line in read_lines(metrics)])
            said.append(run.stdout.split("the quick")[-1].split("\n---")[0])
            tracks = {event.get("pid") for event in json.loads(trace.read_text())["traceEvents"]}
            self.assertGreaterEqual(len(tracks), mesh["ranks"])
        for other in records[1:]:
            self.assertEqual(len(other), len(records[0]))
            for want, have in zip(records[0], other):
                self.assertAlmostEqual(have, want, delta=1e-5 * abs(want))
        self.assertEqual(said[1:], said[:1] * 2)

    def test_the_schedule_is_drawn_with_the_run_beside_it(self):
        picture = self.folder / "schedule.svg"
        run = self.train(ranks=4, tp=2, pp=2, print_schedule=picture, trace=self.folder / "trace.json",
                         config=self.config(gradient_accumulation_steps=4))
        self.assertRegex(run.stdout, r"stage 0 +F0")
        self.assertRegex(run.stdout, r"stage 1 +\.")
        self.assertIn("as it ran, a box for each block", picture.read_text())

    def test_tp_02_exports_of_an_uneven_vocabulary_load_on_one_rank(self):
        folder = self.folder / "model"
        folder.mkdir()
        shape = json.loads((MODELS / "gpt2-odd" / "config.json").read_text())
        shape.update(n_head=4)
        (folder / "config.json").write_text(json.dumps(shape))
        tokens = support.RUNS / "tokens-61.u16"
        files = []
        for tp, pp in ((1, 1), (2, 1), (4, 1), (2, 2)):
            out = self.folder / f"out-{tp}-{pp}"
            self.train(model=folder, from_scratch=True, steps=1, export=out, ranks=tp * pp, tp=tp, pp=pp, data=tokens)
            files.append(read_safetensors(out / "model.safetensors"))
            self.assertEqual(files[-1]["transformer.wte.weight"][1], [61, 48])
            self.assertEqual({name: value[:2] for name, value in files[0].items()},
                             {name: value[:2] for name, value in files[-1].items()})
        self.train(model=self.folder / "out-4-1", steps=1, data=tokens)

    def test_threads_and_processes_agree_to_the_bit_on_a_whole_mesh(self):
        """dp 2 x tp 2 x pp 2 at stage 3, all of it offloaded to host memory."""
        if not options.mpiexec:
            self.skipTest("built without MPI")
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0,
                                                "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
                             gradient_accumulation_steps=2, tensor_parallel={"autotp_size": 2}, pipeline={"stages": 2})
        losses = []
        for launcher in (None, [*options.mpiexec.split(), "8"]):
            metrics = self.folder / f"metrics-{len(losses)}.jsonl"
            arguments = self.train_arguments(config=config, steps=3, metrics=metrics, ranks=None if launcher else 8)
            self.succeed(arguments, **({"launcher": launcher} if launcher else {}))
            losses.append([(line["loss"], line["grad_norm"]) for line in read_lines(metrics)])
        self.assertEqual(losses[0], losses[1])

    def test_threads_and_processes_agree_to_the_bit(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0,
                                                "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
                             tensor_parallel={"autotp_size": 2, "tp_overlap_comm": True})
        losses = []
        for launcher in (None, [*options.mpiexec.split(), "4"]):
            metrics = self.folder / f"metrics-{len(losses)}.jsonl"
            arguments = self.train_arguments(config=config, steps=3, metrics=metrics, ranks=None if launcher else 4)
            self.succeed(arguments, **({"launcher": launcher} if launcher else {}))
            losses.append([(line["loss"], line["grad_norm"]) for line in read_lines(metrics)])
        self.assertEqual(losses[0], losses[1])


if __name__ == "__main__":
    support.main()
