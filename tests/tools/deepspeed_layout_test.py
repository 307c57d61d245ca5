#!/usr/bin/env python3
"""zero3d export --deepspeed: files that hold what those hold which DeepSpeed wrote, value by value.
Usage: deepspeed_layout_test.py --zero3d BINARY [TEST...]"""
import collections
import io
import json
import os
import pickle
import zipfile

import support
from support import MODELS

CHECKPOINTS = support.GOLDEN / "checkpoints"


class Named:
    """An object of a class that is not here: its name, arguments and members."""

    def __init__(self, name):
        self.name = name
        self.value = None

    def __call__(self, *arguments):
        made = Named(self.name)
        made.value = arguments
        return made

    def __setstate__(self, members):
        self.value = members


class TorchFile(pickle.Unpickler):
    """What torch.save wrote, with tensors as (dtype, shape, bytes); executes nothing."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path)
        self.root = self.archive.namelist()[0].split("/")[0]
        super().__init__(io.BytesIO(self.archive.read(self.root + "/data.pkl")))

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        whole = f"{module}.{name}"
        if whole == "torch._utils._rebuild_tensor_v2":
            return self.tensor
        if whole == "torch._tensor._rebuild_from_type_v2":
            return lambda function, _, arguments, __: function(*arguments)
        if whole == "torch.Size":
            return tuple
        return type(whole, (Named,), {"__new__": lambda cls, *a: object.__new__(cls), "__init__": lambda self, *a: setattr(self, "value", a)}) \
            if name[0].isupper() or name == "fragment_address" else whole

    def persistent_load(self, pid):
        kind, key, count = pid[1], pid[2], pid[4]
        name = kind.__name__ if isinstance(kind, type) else kind
        raw = self.archive.read(f"{self.root}/data/{key}")
        return name.split(".")[-1], raw, len(raw) // max(1, count)

    @staticmethod
    def tensor(storage, offset, shape, *_):
        dtype, raw, size = storage
        count = 1
        for dim in shape:
            count *= dim
        return dtype, tuple(shape), raw[offset * size:(offset + count) * size]


class DeepspeedLayout(support.CommandTest):
    def same(self, ours, recorded, where):
        """All that is recorded is in ours; what the writer knows better is left out."""
        if isinstance(recorded, dict):
            for key, value in recorded.items():
                if key in ("ds_config", "note"):
                    continue
                self.assertIn(key, ours, where)
                self.same(ours[key], value, f"{where}.{key}")
            if isinstance(recorded, collections.OrderedDict):
                self.assertEqual(list(ours), list(recorded), where)
        elif isinstance(recorded, Named):
            self.assertEqual(type(ours).__name__, type(recorded).__name__, where)
            self.same(ours.value, recorded.value, where)
        elif isinstance(recorded, (list, tuple)):
            self.assertEqual(len(ours), len(recorded), where)
            for i, (a, b) in enumerate(zip(ours, recorded)):
                self.same(a, b, f"{where}[{i}]")
        elif isinstance(recorded, type):
            self.assertEqual(getattr(ours, "__name__", ours), recorded.__name__, where)
        else:
            self.assertEqual(ours, recorded, where)

    def test_files_are_those_that_deepspeed_wrote(self):
        for name, stage in (("fp16-dynamic-z2", 2), ("frozen-z3", 3), ("adamw-bf16-z3", 3)):
            with self.subTest(name):
                run = json.loads((support.RUNS / name / "run.json").read_text())
                out = self.folder / name
                self.succeed(["export", CHECKPOINTS / name, "--deepspeed", "--out", out, "--model", MODELS / run["model"], "--config",
                              support.RUNS / name / "ds_config.json", "--ranks", run["world"], "--zero-stage", stage])
                tag = (CHECKPOINTS / name / "latest").read_text()
                self.assertEqual((out / "latest").read_text(), tag)
                self.assertEqual(sorted(os.listdir(out / tag)), sorted(os.listdir(CHECKPOINTS / name / tag)))
                for file in os.listdir(out / tag):
                    self.same(TorchFile(out / tag / file).load(), TorchFile(CHECKPOINTS / name / tag / file).load(), file)
                self.assertIn("the same", self.succeed(["diff", out, CHECKPOINTS / name]).stdout)

    def test_ours_there_and_back(self):
        for stage, ranks in ((1, 3), (2, 2), (3, 3)):
            with self.subTest(stage=stage):
                config = self.config(bf16={"enabled": True}, zero_optimization={"stage": stage, "sub_group_size": 20000})
                saved = self.folder / f"saved-{stage}"
                self.train(config=config, steps=2, save=saved, freeze="layers.1.mlp" if stage > 1 else None)
                out = self.folder / f"deepspeed-{stage}"
                self.succeed(["export", saved, "--deepspeed", "--out", out, "--ranks", ranks])
                self.assertIn("the same", self.succeed(["diff", out, saved]).stdout)
                self.assertEqual(len(list(out.glob("*/bf16_zero_pp_rank_*_mp_rank_00_optim_states.pt"))), ranks)
        self.train(config=self.config(optimizer={"type": "Lion", "params": {"lr": 1e-3}}), steps=1, save=self.folder / "lion")
        result = self.run_command(["export", self.folder / "lion", "--deepspeed", "--out", self.folder / "none"])
        self.assertEqual(result.returncode, 1)
        self.assertIn("Adam", result.stderr)


if __name__ == "__main__":
    support.main()
