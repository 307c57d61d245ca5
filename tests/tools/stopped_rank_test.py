#!/usr/bin/env python3
"""What a run under MPI says and does when one of its processes stops answering.
Usage: stopped_rank_test.py --zero3d BINARY [--mpiexec "COMMAND -n"] [TEST...]"""
import os
import signal
import subprocess
import time

import support
from support import options


class StoppedRank(support.CommandTest):
    LIMIT = 4

    def metrics_file(self):
        return self.folder / "metrics.jsonl"

    def start(self):
        """Two processes that train for long; the second leaves its number in a file."""
        arguments = self.train_arguments(steps=1000000, comm_timeout=self.LIMIT, metrics=self.metrics_file())
        command = [options.zero3d, *map(str, arguments)]
        numbered = ["sh", "-c", 'echo $$ >pid; exec "$@"', "sh", *command]
        return subprocess.Popen([*options.mpiexec.split(), "1", *command, ":", "-n", "1", *numbered],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                env=support.environment(), stdin=subprocess.DEVNULL)

    def test_is_told_of_and_ends_the_run_at_the_limit(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        run = self.start()
        self.addCleanup(run.terminate)
        while run.poll() is None and not (self.metrics_file().exists() and self.metrics_file().read_text()):
            time.sleep(0.05)
        stopped = int((self.folder / "pid").read_text())
        os.kill(stopped, signal.SIGSTOP)
        begin = time.monotonic()
        try:
            output, errors = run.communicate(timeout=60)
        finally:
            try:
                os.kill(stopped, signal.SIGKILL)
            except ProcessLookupError:
                pass
        text = output + errors
        self.assertNotEqual(run.returncode, 0, text)
        self.assertLess(time.monotonic() - begin, self.LIMIT + 6, text)  # two seconds of them to say farewell
        wait = r"rank 0 has waited {} s in .*(all_gather|all_reduce|reduce_scatter).* on group of ranks 0, 1 for rank 1"
        self.assertRegex(errors, "warning.*" + wait.format("0.4"))
        self.assertRegex(errors, "zero3d: " + wait.format(self.LIMIT))


    def test_a_process_that_never_comes_ends_the_start_at_the_limit(self):
        if not options.mpiexec:
            self.skipTest("built without MPI")
        command = [options.zero3d, *map(str, self.train_arguments(comm_timeout=self.LIMIT))]
        begin = time.monotonic()
        result = subprocess.run([*options.mpiexec.split(), "1", *command, ":", "-n", "1", "sleep", "60"], capture_output=True, text=True,
                                cwd=self.folder, env=support.environment(), stdin=subprocess.DEVNULL, timeout=90)
        self.assertNotEqual(result.returncode, 0)
        self.assertLess(time.monotonic() - begin, self.LIMIT + 20)
        self.assertIn(f"MPI has not started within {self.LIMIT}000 ms", result.stderr)


if __name__ == "__main__":
    support.main()
