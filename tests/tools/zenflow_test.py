#!/usr/bin/env python3
"""What a ds_config says of zenflow, from the command: plans, metrics, the end of a run, and refusals.
Usage: zenflow_test.py --zero3d BINARY [TEST...]"""
import support
from support import read_safetensors

STEP = {"select_strategy": "step", "topk_ratio": 0.2}


class ZenFlow(support.CommandTest):
    def zenflow(self, keys, name="ds.json", **more):
        zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
        if keys is not None:
            zero["zenflow"] = keys
        return self.config(name=name, zero_optimization=zero, **more)

    def exported(self, keys, **more):
        folder = self.folder / "out"
        records = self.metrics(config=self.zenflow(keys), export=folder, **more)
        tensors = read_safetensors(folder / "model.safetensors")
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return records, tensors

    def test_an_interval_of_one_is_the_plain_run(self):
        plain, expected = self.exported(None, steps=4, ranks=2)
        records, tensors = self.exported(dict(STEP, update_interval=1, select_interval=2), steps=4, ranks=2)
        self.assertEqual(tensors, expected)
        self.assertEqual([r["loss"] for r in records], [r["loss"] for r in plain])
        self.assertNotIn("updates", plain[0])
        self.assertEqual([r["updates"]["chosen"] for r in records], [True, False, True, False])
        self.assertTrue(all(r["updates"]["on_device"] and r["updates"]["on_host"] for r in records))

    def test_the_end_of_a_run_leaves_nothing_under_way(self):
        keys = dict(STEP, update_interval=4, select_interval=4)
        data = support.RUNS / "tokens-257.u16"
        records, expected = self.exported(keys, steps=4, eval_data=data)
        late, tensors = self.exported(dict(keys, overlap_step=True), steps=4, eval_data=data)
        self.assertEqual(tensors, expected, "what the last round began has taken effect")
        self.assertEqual(late[-1], records[-1], "also for the last evaluation")
        self.assertEqual([r["updates"]["waiting_steps"] for r in late[:4]], [1, 2, 3, 0])
        _, earlier = self.exported(keys, steps=3)
        _, warm = self.exported(dict(keys, full_warm_up_rounds=3), steps=3)
        _, plain = self.exported(None, steps=3)
        self.assertEqual(warm, plain)
        self.assertNotEqual(earlier, plain)

    def test_an_epoch_is_counted_from_the_data(self):
        data = self.folder / "tokens.u16"  # four samples: two steps an epoch
        data.write_bytes((support.RUNS / "tokens-257.u16").read_bytes()[:2 * (4 * 16 + 1)])
        keys = dict(topk_ratio=0.2, update_interval=1)
        for used, more in ((keys, {"data": data}), (dict(keys, steps_per_epoch=2), {})):
            with self.subTest(used):
                records = self.metrics(config=self.zenflow(used), steps=5, **more)
                self.assertEqual([r["updates"]["chosen"] for r in records], [True, False, True, False, True])
        run = self.run_command(self.train_arguments(config=self.zenflow(dict(keys, update_interval=3)), data=data))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("zero_optimization.zenflow.update_interval: is 3, more than the 2 steps between choices", run.stderr)

    def test_the_plan_says_so_and_validate_says_the_same(self):
        config = self.zenflow(dict(STEP, update_interval=3, select_interval=6, overlap_step=True, full_warm_up_rounds=2))
        line = ("0.2 of each parameter at every step on the device, chosen every 6 steps; the rest every 3 steps on the host, "
                "taking effect so many steps later; after 2 steps of everything")
        self.assertRegex(self.train(config=config, dry_run=True).stdout, f"(?m)^updates +{line}$")
        self.assertIn(f"updates: {line}", self.succeed(["validate", config]).stdout)

    def test_what_validate_refuses_train_refuses(self):
        for keys, more in ((dict(STEP, offload=True, select_interval=8), {}),
                           (dict(STEP, update_interval=9, select_interval=8), {}),
                           ({}, {"optimizer": {"type": "Lion", "params": {"lr": 1e-3}}})):
            with self.subTest(keys):
                config = self.zenflow(keys, **more)
                told = self.run_command(["validate", config]).stdout
                run = self.run_command(self.train_arguments(config=config))
                self.assertNotEqual(run.returncode, 0)
                message = run.stderr[run.stderr.index("zero_optimization.zenflow"):].splitlines()[0]
                self.assertIn(message, told)

    def test_an_interval_of_one_is_the_plain_run_on_a_mesh(self):
        for mesh in ({"tensor_parallel": {"autotp_size": 2}}, {"pipeline": {"stages": 2}}):
            with self.subTest(mesh):
                plain, losses, late = ([r["loss"] for r in self.metrics(config=self.zenflow(keys, **mesh), steps=4, ranks=2)]
                                       for keys in (None, dict(STEP, update_interval=1, select_interval=1),
                                                    dict(STEP, update_interval=3, select_interval=3)))
                self.assertEqual(losses, plain)
                self.assertNotEqual(late, plain)

    def test_checkpoints_are_refused_by_name(self):
        config = self.zenflow(dict(STEP, update_interval=2, select_interval=4))
        self.train(config=self.zenflow(None, name="plain.json"), steps=1, save=self.folder / "saved")
        for option, value in (("save", self.folder / "other"), ("resume", self.folder / "saved")):
            with self.subTest(option):
                run = self.run_command(self.train_arguments(config=config, steps=2, **{option: value}))
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(f"zero_optimization.zenflow: works without --{option}: ", run.stderr)
                self.assertFalse((self.folder / "other").exists())


if __name__ == "__main__":
    support.main()
