#!/usr/bin/env python3
"""zero3d inspect: what a checkpoint of DeepSpeed holds, and whether its files are whole.
Usage: inspect_test.py --zero3d BINARY [TEST...]"""
import shutil
import subprocess
import unittest

import support
from support import GOLDEN, CommandTest

RECORDED = GOLDEN / "checkpoints"


class Inspect(CommandTest):
    def test_says_what_a_checkpoint_holds(self):
        out = self.succeed(["inspect", RECORDED / "fp16-dynamic-z2", "--verify"]).stdout
        for part in ("checkpoint of DeepSpeed 0.19.8", "ZeRO stage 2 over 2 ranks; weights in fp16", "after step 12 (9 skipped)",
                     "loss scale 262144, dynamic", "group 0: 3 updates", "lm_head.weight is transformer.wte.weight",
                     "28 parameters, 120,640 elements", "transformer.wte.weight [257, 64]: exp_avg, exp_avg_sq",
                     "every file has the checksums"):
            self.assertIn(part, out)

    def test_takes_tags_pipelines_and_universal_ones(self):
        out = self.succeed(["inspect", RECORDED / "pipe2-dp2-z1" / "global_step4"]).stdout
        self.assertIn("2 pipeline stages", out)
        self.assertIn("3.block.ln_1.weight [32]", out)
        out = self.succeed(["inspect", RECORDED / "adamw-bf16-z3" / "global_step5_universal"]).stdout
        self.assertIn("in universal form", out)
        out = self.succeed(["inspect", RECORDED / "frozen-z3"]).stdout
        self.assertIn("transformer.wte.weight [257, 64] frozen", out)

    def refused(self, folder, part, *more):
        result = self.run_command(["inspect", folder, *more])
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(part, result.stderr)

    def test_refuses_what_is_none_or_damaged(self):
        self.refused(self.folder / "absent", "expected a folder with a checkpoint")
        self.refused(self.folder, "has neither a checkpoint")
        copy = self.folder / "copy"
        shutil.copytree(RECORDED / "frozen-z3", copy)
        file = copy / "global_step4" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
        self.succeed(["inspect", copy])
        self.refused(copy, f"{file}: entry", "--verify")
        file.write_bytes(raw[:-30])
        self.refused(copy, "no complete zip archive")
        file.unlink()
        self.refused(copy, "expected the optimizer files of 2 ZeRO ranks")

    def test_needs_an_output(self):
        result = subprocess.run(["sh", "-c", f"{support.options.zero3d} inspect {RECORDED / 'frozen-z3'} >&-"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output is closed", result.stderr)


if __name__ == "__main__":
    support.main()
