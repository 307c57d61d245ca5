#!/usr/bin/env python3
"""Proof that the tests bite: puts plausible faults into a copy of the tree, one at a time, and shows that a test fails.

Two lists. The calls: every statement in engine/ and offload/ that orders work (waits, records, releases, ...), deleted. The table,
tools/mutations.tsv: a file, a text that is in it once, what to write instead, and the tests that should notice. A text that is not
there, or twice, ends the run: whoever changes such a line changes the table too.

Each mutant builds one test at a time and stops at the first that fails: for the table the tests that it names, for the calls all of
the engine's, those that noticed most so far first. Results are appended to a file; what is there is not run again.

  tools/mutate.py --check                      the lists fit the tree; runs nothing
  tools/mutate.py --list calls                 what would be run
  tools/mutate.py --shard 0/4 --seconds 240    every fourth mutant, beginning none after four minutes
  tools/mutate.py --again REGEX                also what survived before, of those that match

Ends with 'N killed, N survived, N left'."""
import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "mutations.tsv"
ORDERING = "wait record release ready finish publish synchronize end_step acquire used_on give_up gather_published close"
DRIVEN = ("command_test", "bad_input_test", "checkpoint_test", "deepspeed_layout_test", "same_words_test", "plan_test", "drive_fault_test", "inspect_test", "mesh_command_test", "zenflow_test", "published_files_test", "recorded_runs_test")  # By the command; other tests are programs of their name.
# A mutant may leave something unused; that alone is no reason not to build.
WARNINGS = "unused-variable unused-but-set-variable unused-function unused-parameter unused-value parentheses"
PRAGMAS = "".join(f'#pragma GCC diagnostic ignored "-W{warning}"\n' for warning in WARNINGS.split())


@dataclasses.dataclass
class Mutant:
    name: str  # The same until the place itself changes, and unique.
    file: str
    begin: int  # The bytes [begin, end) of the file become `text`.
    end: int
    text: str
    tests: list


def without_comments(source):
    return re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), source)


def matching(text, at, step):
    """The place of the bracket that the one at `at` pairs with."""
    depth = 0
    while True:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += step


def start_of_call(code, at):
    """Where the expression begins whose last name is at `at`: a(b).c[d]->name"""
    while at > 0:
        before = code[at - 1]
        if before.isalnum() or before in "_.:" or code[at - 2:at] == "->":
            at -= 2 if before == ">" else 1
        elif before in ")]" and code[at] in ".-[(":
            at = matching(code, at - 1, -1)
        else:
            break
    return at


def find_calls():
    """Statements that are one call, perhaps behind a condition; where a value is used or a function declared is none."""
    found = []
    for path in sorted(path for folder in ("engine", "offload") for path in (ROOT / folder).rglob("*.[ch]*")):
        if path.name == "CMakeLists.txt":
            continue
        code = without_comments(path.read_text())
        seen = collections.Counter()
        for match in re.finditer(r"\b(%s)\(" % ORDERING.replace(" ", "|"), code):
            begin = start_of_call(code, match.start())
            end = matching(code, match.end() - 1, 1) + 1
            before = code[:begin].rstrip()
            if code[end] != ";" or not (before[-1] in ";{})" or before.endswith("else")):
                continue
            file = str(path.relative_to(ROOT))
            statement = " ".join(code[begin:end].split())
            seen[statement] += 1
            name = f"calls {file}: {statement}" + (f" #{seen[statement]}" if seen[statement] > 1 else "")
            found.append(Mutant(name, file, begin, end, "(void)0", []))
    return found


def read_table():
    """The mutants of the table, and what is wrong with it."""
    found, problems = [], []
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        place = f"{TABLE.relative_to(ROOT)}:{number}"
        columns = line.split("\t")
        if len(columns) != 4:
            problems.append(f"{place}: expected file, text, replacement and tests with a tab between, found {len(columns)} columns")
            continue
        file, text, replacement, tests = columns
        path = ROOT / file
        source = path.read_text() if path.is_file() else ""
        count = source.count(text)
        if count != 1:
            problems.append(f"{place}: expected this text once in {file}, found it {count} times: {text}")
            continue
        begin = source.index(text)
        found.append(Mutant(f"table {file}: {text} -> {replacement}", file, begin, begin + len(text), replacement, tests.split(",")))
    names = collections.Counter(mutant.name for mutant in found)
    problems += [f"twice in the table: {name}" for name, count in names.items() if count > 1]
    return found, problems


class Results:
    """Lines 'status, test, seconds, name'; the last line of a name counts."""

    def __init__(self, path):
        self.path = path
        self.status = {}
        self.kills = collections.Counter()
        for line in path.read_text().splitlines() if path.exists() else []:
            status, test, _, name = line.split("\t", 3)
            self.take(status, test, name)

    def take(self, status, test, name):
        self.status[name] = status
        if status == "killed":
            self.kills[test] += 1

    def add(self, status, test, seconds, name):
        self.take(status, test, name)
        with self.path.open("a") as out:
            out.write(f"{status}\t{test}\t{seconds:.1f}\t{name}\n")


class Workshop:
    """The copy of the tree and its build, of the release preset, so that ccache knows all that is not mutated."""

    def __init__(self, tree):
        self.tree = tree
        self.build = tree / "build" / "release"
        self.log = tree / "build" / "log"
        self.build.mkdir(parents=True, exist_ok=True)
        files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
        for file in files.stdout.splitlines():
            self.restore(file)
        self.log.write_text("")
        self.run(["cmake", "--preset", "release", "-DZERO3D_BUILD_TESTS=ON"])
        listed = subprocess.run(["ctest", "-N"], cwd=self.build, capture_output=True, text=True, check=True).stdout
        self.sound = set()  # Tests that were seen to pass without a mutant.
        self.tests = re.findall(r"Test +#\d+: (\S+)", listed)

    def restore(self, file):
        """Copies what differs, so that nothing else is built anew."""
        source, target = ROOT / file, self.tree / file
        if not source.is_file() or (target.is_file() and target.read_bytes() == source.read_bytes()):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)

    def run(self, command, timeout=600):
        with self.log.open("a") as log:
            print("\n$", *command, file=log, flush=True)
            return subprocess.run(command, cwd=self.tree, stdout=log, stderr=log, timeout=timeout, check=False,
                                  env=dict(os.environ, GTEST_FAIL_FAST="1")).returncode

    def passes(self, test):
        """None when it does not build."""
        target = "zero3d_cli" if test in DRIVEN else test
        if self.run(["cmake", "--build", str(self.build), "--parallel", "1", "--target", target]) != 0:
            return None
        return self.run(["ctest", "--test-dir", str(self.build), "-R", f"^{test}$", "--timeout", "120"]) == 0

    def require_sound(self, test):
        if test not in self.sound and not self.passes(test):
            sys.exit(f"{test} fails without any mutant: see {self.log}")
        self.sound.add(test)

    def try_mutant(self, mutant, tests):
        """(status, the test that decided)"""
        source = (ROOT / mutant.file).read_text()
        (self.tree / mutant.file).write_text(PRAGMAS + source[:mutant.begin] + mutant.text + source[mutant.end:])
        try:
            for test in tests:
                passed = self.passes(test)
                if not passed:
                    return ("unbuilt" if passed is None else "killed"), test
            return "survived", "-"
        finally:
            self.restore(mutant.file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time, each in a tree of its own")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build", help="of the trees and the results")
    parser.add_argument("pattern", nargs="?", default=".", help="of 'calls FILE: STATEMENT' and 'table FILE: TEXT -> TEXT'")
    options = parser.parse_args()

    table, problems = read_table()
    tests = set(re.findall(r"(?:zero3d_test\(|name )(\w+_test)", "".join(p.read_text() for p in (ROOT / "tests").rglob("CMakeLists.txt"))))
    unknown = {test for mutant in table for test in mutant.tests} - tests - set(DRIVEN)
    problems += [f"{TABLE.relative_to(ROOT)}: no test is called {test}" for test in sorted(unknown)]
    for problem in problems:
        print(problem)
    if problems or options.check:
        print(f"{len(table)} of the table fit, {len(problems)} do not; {len(find_calls())} calls")
        return 2 if problems else 0
    shard, shards = map(int, options.shard.split("/"))
    mutants = [m for m in table + find_calls() if re.search(options.pattern, m.name)][shard::shards]
    if options.list:
        print(*(m.name for m in mutants), sep="\n")
        return 0

    deadline = time.monotonic() + options.seconds
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.folder / "mutate-results.tsv")
    wanted = [m for m in mutants if results.status.get(m.name) is None or (options.again and results.status[m.name] != "killed")]
    queue = collections.deque(wanted)

    def work(number):
        workshop = Workshop(options.folder.resolve() / f"mutate-{number}")
        engine = [test for test in workshop.tests if test.startswith("engine_")]
        while queue and time.monotonic() < deadline:
            mutant = queue.popleft()
            begin = time.monotonic()
            tests = mutant.tests or sorted(engine, key=lambda test: -results.kills[test])
            status, test = workshop.try_mutant(mutant, tests)
            if status != "survived":
                workshop.require_sound(test)
            results.add(status, test, time.monotonic() - begin, mutant.name)
            print(f"{status:8} {time.monotonic() - begin:5.1f} s  {mutant.name}  [{test}]", flush=True)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for worker in [pool.submit(work, number) for number in range(min(options.jobs, len(wanted)))]:
            worker.result()

    states = [results.status.get(mutant.name, "left") for mutant in mutants]
    for mutant, status in zip(mutants, states):
        if status in ("survived", "unbuilt"):
            print(f"{status}: {mutant.name}")
    count = collections.Counter(states)
    print(f"{count['killed']} killed, {count['survived'] + count['unbuilt']} survived, {count['left']} left")
    return 0 if count["killed"] == len(states) else 1


if __name__ == "__main__":
    sys.exit(main())
