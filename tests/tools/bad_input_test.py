#!/usr/bin/env python3
"""What `zero3d train` does with inputs it cannot train from: one clear error on stderr, a non-zero exit soon, and nothing half
written. Usage: bad_input_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import json
import os
import shutil
import struct
import time
import unittest
import unittest.mock

import support
from support import MODELS, RUNS, CommandTest, options, read_safetensors, write_safetensors


class Refusal(CommandTest):
    def refuse(self, *parts, arguments=None, launcher=(), code=1, **keywords):
        """Runs with an export; expects `parts` in one message that is told once, and no trace of the export."""
        export = self.folder / "exported"
        arguments = arguments or self.train_arguments(export=export, **keywords)
        result = self.run_command(arguments, launcher=launcher, timeout=30)
        told = [line for line in result.stderr.splitlines() if line.startswith("zero3d: ")]
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertGreaterEqual(result.returncode, 0, f"ended by signal {-result.returncode}: {result.stderr}")
        if code is not None and not launcher:
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(len(told), 1, result.stderr)
        for part in parts:
            self.assertIn(str(part), result.stderr)
        left = [p.name for p in self.folder.iterdir() if p.name.startswith((".exported", "exported"))]
        self.assertEqual(left, [])
        return result

    def refuse_everywhere(self, *parts, **keywords):
        """As one rank, as threads, and as processes."""
        result = self.refuse(*parts, **keywords)
        self.refuse(*parts, **keywords, ranks=3)
        if options.mpiexec:
            self.refuse(*parts, **keywords, launcher=[*options.mpiexec.split(), "3"])
        return result


class ModelFolders(Refusal):
    def copy(self, model="llama-tiny"):
        folder = self.folder / "model"
        shutil.copytree(MODELS / model, folder)
        return folder

    def test_no_such_folder(self):
        self.refuse_everywhere(self.folder / "nowhere", model=self.folder / "nowhere")
        self.refuse("gtp2", "gpt2", model="gtp2")

    def test_an_id_of_the_hub(self):
        self.refuse("meta-llama/Llama-3.2-1B", "does not download", "--local-dir", model="meta-llama/Llama-3.2-1B")

    def test_no_config(self):
        folder = self.copy()
        (folder / "config.json").unlink()
        self.refuse_everywhere(folder / "config.json", model=folder)

    def test_a_config_that_is_no_json(self):
        folder = self.copy()
        text = (folder / "config.json").read_text()
        for damaged, told in ((text + "}", "is no JSON"), ('{\n "vocab_size": 1,,\n', "line 2, column 18"), ("", "line 1, column 1"),
                              ("[" * 10 ** 6, "nested deeper"), ('{"architectures":' * 100 + "1" + "}" * 100, "nested deeper"),
                              ('{"vocab_size": 1e999}', "too large"),
                              (text.replace('"eos_token_id": ', '"eos_token_id": 18446744073709551615, "x": '), "eos_token_id")):
            with self.subTest(told):
                (folder / "config.json").write_text(damaged)
                self.assertNotIn("exception", self.refuse(folder / "config.json", told, model=folder).stderr)

    def test_a_path_that_no_file_system_takes(self):
        for option in ("model", "config", "data", "metrics", "trace", "export"):
            with self.subTest(option):
                path = self.folder / ("n" * 300)
                result = self.refuse(str(path)[:200], arguments=self.train_arguments(**{option: path}))
                self.assertNotIn("filesystem error", result.stderr)
                self.assertNotIn("step 1", result.stdout)

    def test_an_architecture_we_do_not_know(self):
        folder = self.copy()
        config = json.loads((folder / "config.json").read_text())
        config.update(model_type="mamba", architectures=["MambaForCausalLM"])
        (folder / "config.json").write_text(json.dumps(config))
        self.refuse("amba", model=folder)

    def test_no_weights(self):
        folder = self.copy()
        (folder / "model.safetensors").unlink()
        self.refuse_everywhere("model.safetensors", model=folder)

    def test_an_index_of_a_million_files_that_are_not_there(self):
        folder = self.copy()
        (folder / "model.safetensors").unlink()
        shards = {f"t{i}": f"m-{i}.safetensors" for i in range(10 ** 6)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        begin = time.monotonic()
        self.refuse("m-0.safetensors", "No such file", model=folder)
        self.assertLess(time.monotonic() - begin, 15)

    def test_truncated_weights(self):
        folder = self.copy()
        file = folder / "model.safetensors"
        raw = file.read_bytes()
        for size in (0, 7, 100, len(raw) // 2, len(raw) - 1):
            file.write_bytes(raw[:size])
            with self.subTest(size=size):
                self.refuse(file, model=folder)
        self.refuse_everywhere(file, model=folder)

    def test_all_that_is_wrong_with_the_tensors_in_one_message(self):
        folder = self.copy()
        file = folder / "model.safetensors"
        tensors = read_safetensors(file)
        names = sorted(name for name in tensors if "layers" in name)
        missing, reshaped, integral = names[0], names[5], names[9]
        del tensors[missing]
        dtype, shape, raw = tensors[reshaped]
        tensors[reshaped] = (dtype, [*shape, 1, 1], raw)
        tensors[integral] = ("I32", *tensors[integral][1:])
        tensors["model.layers.9.unheard_of"] = ("F32", [1], struct.pack("<f", 1))
        write_safetensors(file, tensors)
        message = self.refuse(missing, reshaped, integral, "unheard_of", model=folder).stderr
        self.refuse_everywhere(missing, reshaped, integral, "unheard_of", model=folder)
        self.assertEqual(message.count("zero3d: "), 1)


class Data(Refusal):
    def test_a_token_outside_the_vocabulary(self):
        data = self.folder / "data.u16"
        raw = bytearray((RUNS / "tokens-257.u16").read_bytes())
        raw[200:202] = struct.pack("<H", 300)
        data.write_bytes(raw)
        self.refuse_everywhere(data, "100", "300", "257", data=data)

    def test_a_model_of_fewer_tokens_than_bytes(self):
        text = self.folder / "text.txt"
        text.write_text("abcdefgh~" * 100)
        self.refuse_everywhere(text, "97", "61", model="gpt2-odd", data=text, data_format="text")

    def test_less_than_one_sample(self):
        data = self.folder / "short.u16"
        data.write_bytes(b"\1\0" * 16)  # 16 inputs need 17 tokens
        self.refuse_everywhere("17", data=data)
        data.write_bytes(b"\1\0" * 17)
        self.train(data=data, config=self.config(train_micro_batch_size_per_gpu=1))
        data.write_bytes(b"")
        self.refuse("short.u16", data=data)

    def test_a_micro_batch_larger_than_the_data(self):
        data = self.folder / "short.u16"
        data.write_bytes(b"\1\0" * (16 * 3 + 1))
        config = self.config(train_micro_batch_size_per_gpu=4)
        self.assertNotIn("step 1", self.refuse("train_micro_batch_size_per_gpu is 4", "3 samples", config=config, data=data).stdout)
        self.train(config=self.config(train_micro_batch_size_per_gpu=3), data=data)

    def test_unreadable_paths(self):
        self.refuse_everywhere(self.folder / "nowhere.bin", data=self.folder / "nowhere.bin")
        self.refuse(self.folder, data=self.folder)
        self.refuse("eval.bin", eval_data=self.folder / "eval.bin")
        self.refuse("nowhere.json", config=self.folder / "nowhere.json")
        if os.getuid() != 0:
            hidden = self.folder / "hidden.u16"
            hidden.write_bytes(b"\1\0" * 100)
            hidden.chmod(0)
            self.refuse(hidden, data=hidden)


class Outputs(Refusal):
    def test_paths_that_cannot_be_written_are_found_before_the_first_step(self):
        file = self.folder / "file"
        file.write_text("in the way")
        for option in ("metrics", "trace", "export"):
            with self.subTest(option):
                path = file / "below"
                arguments = self.train_arguments(**{option: path})
                self.assertNotIn("step 1", self.refuse(path, arguments=arguments).stdout)
        keeps = self.folder / "keeps"
        keeps.mkdir()
        (keeps / "letter.txt").write_text("precious")
        self.refuse(keeps, arguments=self.train_arguments(export=keeps))
        self.assertEqual((keeps / "letter.txt").read_text(), "precious")

    def test_an_export_to_a_link_that_leads_nowhere(self):
        link = self.folder / "link"
        link.symlink_to(self.folder / "nowhere")
        self.assertNotIn("step 1", self.refuse(link, "nowhere", arguments=self.train_arguments(export=link)).stdout)
        self.assertTrue(link.is_symlink())

    def test_too_few_descriptors(self):
        limited = ["bash", "-c", 'ulimit -n 20; exec "$@"', "bash"]
        self.assertNotIn("step 1", self.refuse("ulimit -n", launcher=limited).stdout)

    def test_too_little_address_space(self):
        for kib, more in ((150_000, {"ranks": 2}), (300_000, {"ranks": 1, "threads": 100}), (400_000, {"ranks": 2, "threads": 1}),
                          (1_000_000, {"ranks": 2, "threads": 100})):
            limited = ["bash", "-c", f'ulimit -v {kib}; exec "$@"', "bash"]
            self.refuse("ulimit -v", launcher=limited, **more)

    def test_no_output_takes_the_place_of_an_input_or_another_output(self):
        model = self.folder / "model"
        shutil.copytree(MODELS / "gpt2-tiny", model)
        before = (model / "model.safetensors").read_bytes()
        self.refuse("--export", "--model", arguments=self.train_arguments(model=model, export=f"{model}/."))
        self.assertEqual((model / "model.safetensors").read_bytes(), before)
        config = self.config()
        text = config.read_text()
        self.refuse("--metrics", "--config", arguments=self.train_arguments(config=config, metrics=config))
        self.assertEqual(config.read_text(), text)
        same = self.folder / "same"
        self.refuse("--trace", "--metrics", arguments=self.train_arguments(metrics=same, trace=same))

    def test_an_older_export_outlives_a_failed_run(self):
        folder = self.folder / "model"
        self.train(export=folder)
        before = read_safetensors(folder / "model.safetensors")
        arguments = self.train_arguments(export=folder, device_memory="200KiB")
        self.refuse("200.00 KiB", arguments=arguments)
        self.assertEqual(before, read_safetensors(folder / "model.safetensors"))


class Options(Refusal):
    def test_a_budget_too_small_for_the_plan(self):
        for stage in (0, 3):
            config = self.config(zero_optimization={"stage": stage})
            with self.subTest(stage):
                stdout = self.refuse("300.00 KiB", "the plan needs", "parameters", "--device-memory", config=config,
                                     device_memory="300KiB").stdout
                self.assertNotIn("step 1", stdout)
                self.refuse_everywhere("300.00 KiB", "the plan needs", config=config, device_memory="300KiB")

    def test_a_host_budget_too_small_for_the_plan(self):
        stdout = self.refuse("50 B", "the plan needs", "gathered parameters", "--host-memory", host_memory="50").stdout
        self.assertNotIn("step 1", stdout)
        self.refuse_everywhere("50 B", "the plan needs", host_memory="50")

    def test_a_gpu_that_this_build_or_machine_lacks(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            result = self.refuse_everywhere("--device cpu", device="cuda")
            self.assertRegex(result.stderr, "this build has no CUDA; configure it with -DZERO3D_CUDA=ON|no GPU")
            self.train(device="auto")

    def test_a_budget_that_is_enough(self):
        config = self.config(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0})
        output = self.train(config=config, ranks=2, device_memory="8MiB", host_memory="8MiB").stdout
        self.assertIn("planned per rank on the host", output)
        self.assertIn("step 2/2", output)

    def test_a_regular_expression_that_is_none(self):
        self.refuse("--freeze", "(", freeze="(")
        self.refuse("--freeze", "counts too far", freeze="(((a{99}){9}){9}){9}")
        self.refuse("--freeze", "too large", freeze=r"\pL{999}")
        self.refuse("--no-decay", "looking ahead", no_decay="(?=a)")
        self.refuse("--freeze", "back references", freeze=r"(a)\1")

    def test_regular_expressions_that_take_long_or_deep_ones(self):
        self.refuse("finds no parameter", freeze="^(([a-z0-9_.])+)+!$")
        for depth in (20000, 60000):
            self.refuse("every parameter is frozen", freeze="(" * depth + ")" * depth)

    def test_steps_that_are_skipped_one_after_the_other(self):
        config = self.config(fp16={"enabled": True, "loss_scale": 1e30})
        self.refuse_everywhere("3 steps in a row", "--max-skipped-steps", config=config, steps=9, max_skipped_steps=3)

    def test_a_run_whose_last_steps_were_all_skipped(self):
        config = self.config(fp16={"enabled": True, "loss_scale": 1e30})
        for launch in ({}, {"ranks": 2}, {"launcher": [*options.mpiexec.split(), "2"]} if options.mpiexec else {}):
            launcher = launch.pop("launcher", ())
            trace, metrics = self.folder / "trace.json", self.folder / "metrics.jsonl"
            arguments = self.train_arguments(config=config, steps=3, trace=trace, metrics=metrics, **launch)
            result = self.refuse("the last 3 of 3 steps were all skipped", "after step 0", arguments=arguments, launcher=launcher)
            self.assertIn("3/3  loss", result.stdout)
            self.assertEqual([record["skipped"] for record in support.read_lines(metrics)], [True] * 3)
            self.assertIn("traceEvents", json.loads(trace.read_text()))
            trace.unlink()
        # A loss scale that finds its way down is no failure, nor are skipped steps before others.
        falling = self.config(fp16={"enabled": True, "initial_scale_power": 32, "hysteresis": 1})
        self.assertIn("skipped", self.train(config=falling, steps=40).stdout)

    def test_a_plan_that_the_machine_cannot_hold(self):
        data = self.folder / "sparse.u16"
        with open(data, "wb") as file:
            file.write(b"\1\0")  # zeros alone are refused
            file.truncate(2 ** 33)
        config = self.config(train_micro_batch_size_per_gpu=2 ** 31)
        result = self.refuse("TiB for each rank", "activations", "MemAvailable", "train_micro_batch_size_per_gpu",
                             config=config, data=data, seq_len=1)
        self.assertNotIn("step 1", result.stdout)

    def test_a_pattern_that_finds_nothing(self):
        self.refuse("--freeze", "nosuchname", freeze="nosuchname")
        self.refuse("--no-decay", "nosuchname", no_decay="nosuchname")

    def test_what_cannot_be_read_as_an_option(self):
        result = self.run_command(self.train_arguments(device_memory="plenty"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("plenty", result.stderr)
        result = self.run_command(["train", "--steps", "0"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--steps", result.stderr)

    def test_numbers_out_of_their_range(self):
        for option, value in (("temperature", "nan"), ("temperature", "inf"), ("temperature", "-1"), ("seed", "-1"), ("seed", 2 ** 64),
                              ("seed", "1.5"), ("steps", "0"), ("steps", 2 ** 63), ("steps", "1e3"), ("steps", "010"), ("ranks", 4097), ("threads", "0"),
                              ("seq_len", 2 ** 63 - 1), ("seq_len", 2 ** 31 + 1), ("max_skipped_steps", 2 ** 31), ("tp", "0"),
                              ("generate_tokens", "-1"), ("lr", "nan"), ("eps", "inf"), ("betas", "0.9,nan"), ("micro_batch", "0"),
                              ("warmup_steps", "-5"), ("ranks", "x" * 1000)):
            with self.subTest(option, value=value):
                result = self.run_command(self.train_arguments(**{option: value}))
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertRegex(result.stderr, f"^--{option.replace('_', '-')}: expected a (whole )?number( .*)?, found ")
                self.assertLess(len(result.stderr), 250)

    def test_a_seed_of_64_bits(self):
        self.train(seed=2 ** 64 - 1)

    def test_configured_numbers_that_are_computed_with_in_fewer_bits(self):
        adam = {"type": "AdamW", "params": {"lr": 1e-3}}
        cycle = {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1e-3, "cycle_first_step_size": 2 ** 31}}
        for key, value in (("fp16.initial_scale_power", {"enabled": True, "initial_scale_power": 2 ** 32 + 4}),
                           ("fp16.loss_scale", {"enabled": True, "loss_scale": 1e39}),
                           ("gradient_accumulation_steps", 2 ** 31), ("gradient_predivide_factor", 1e39),
                           ("optimizer.params.eps", {**adam, "params": {"eps": 1e39}}),
                           ("optimizer.params.lr", {**adam, "params": {"lr": 1e300}}),
                           ("scheduler.params.warmup_max_lr", {"type": "WarmupLR", "params": {"warmup_max_lr": 1e39}}),
                           ("scheduler.params.warmup_num_steps", {"type": "WarmupLR", "params": {"warmup_num_steps": 2 ** 62}}),
                           ("scheduler.params.cycle_first_step_size", cycle)):
            with self.subTest(key):
                result = self.refuse(key, "expected", config=self.config(**{key.split(".")[0]: value}))
                self.assertNotIn("step 1", result.stdout)

    def test_a_sequence_longer_than_the_model(self):
        self.refuse("--seq-len 65", "64 positions", model="gpt2-tiny", seq_len=65)
        self.train(model="gpt2-tiny", seq_len=64)

    def test_text_from_a_model_without_bytes(self):
        self.refuse("--generate", "61", model="gpt2-odd", data=RUNS / "tokens-61.u16", generate="a")


class Launchers(Refusal):
    """Several processes of which each would train alone."""

    def solo(self, *parts, **variables):
        self.refuse(*parts, "MPI's world has 1 rank", "mpirun -n", launcher=["env", *(f"{k}={v}" for k, v in variables.items())])

    def test_processes_that_no_mpi_joins(self):
        self.solo("torchrun started 4 processes", RANK=1, LOCAL_RANK=1, WORLD_SIZE=4)
        self.solo("srun started 2 processes", SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=0)
        self.solo("at least 2 processes (PMIX_RANK=1)", PMIX_RANK=1)
        self.succeed(self.train_arguments(), launcher=["env", "SLURM_NTASKS=4", "SLURM_PROCID=0", "WORLD_SIZE=4"])

    def test_processes_of_another_mpi(self):
        if options.mpiexec:
            self.solo("mpiexec started 4 processes (PMI_SIZE=4)", PMI_RANK=0, PMI_SIZE=4)

    def test_ranks_that_are_not_those_of_the_launcher(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        launcher = [*options.mpiexec.split(), "2"]
        result = self.refuse("--ranks 3", "2 processes", "mpirun -n 3", launcher=launcher, ranks=3)
        self.assertNotIn("step 1", result.stdout)
        self.refuse("--ranks 1", "2 processes", launcher=launcher, ranks=1)
        self.refuse("--ranks 2", "1 process, which is the one rank", launcher=[*options.mpiexec.split(), "1"], ranks=2)
        self.succeed(self.train_arguments(ranks=2), launcher=launcher)


class Agreement(Refusal):
    def launch(self, first, second):
        """Two processes of one MPI job with a command line each."""
        return [*options.mpiexec.split(), "1", options.zero3d, *map(str, first), ":", "-n", "1"], second

    def disagree(self, *parts, first, second):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        launcher, rest = self.launch(self.train_arguments(**first), self.train_arguments(**second))
        result = self.refuse(*parts, arguments=rest, launcher=launcher)
        self.assertNotIn("step 1", result.stdout)

    def test_ranks_with_other_configurations(self):
        other = self.config("other.json", optimizer={"type": "AdamW", "params": {"lr": 2e-3}})
        self.disagree("disagrees with rank 0", "--config", first={}, second={"config": other})

    def test_ranks_with_other_options(self):
        self.disagree("--steps", "2", "3", first={}, second={"steps": 3})
        self.disagree("--freeze", first={}, second={"freeze": "norm"})
        self.disagree("--model", first={}, second={"model": "llama-tied-rope3"})

    def test_ranks_with_other_outputs(self):
        for option in ("trace", "metrics", "export"):
            self.disagree(f"--{option}", "absent", "given", first={option: self.folder / option}, second={})
        self.disagree("--temperature", first={"generate": "a", "temperature": 0}, second={"generate": "a", "temperature": 1})

    def test_ranks_with_other_contents_of_files(self):
        other = bytearray((RUNS / "tokens-257.u16").read_bytes())
        other[0], other[1] = other[2], other[3]
        tokens = self.folder / "other.u16"
        tokens.write_bytes(other)
        self.disagree("the tokens of --data", first={}, second={"data": tokens})
        self.disagree("the tokens of --eval-data", first={"eval_data": tokens}, second={"eval_data": RUNS / "tokens-257.u16"})
        self.disagree("the weights", "drawn", first={}, second={"from_scratch": True})

    def test_a_file_that_only_one_rank_lacks(self):
        self.disagree("nowhere.u16", first={}, second={"data": self.folder / "nowhere.u16"})


if __name__ == "__main__":
    support.main()
