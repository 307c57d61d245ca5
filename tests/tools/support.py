"""What the tests of the command share: running it, reading what it writes, and making damaged inputs."""
import argparse
import collections
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import zipfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
MODELS = GOLDEN / "models"
RUNS = GOLDEN / "runs"

options = argparse.Namespace(zero3d="zero3d", mpiexec="")


def main():
    """unittest.main() with --zero3d BINARY and --mpiexec "COMMAND -n" before the names of tests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero3d", required=True)
    parser.add_argument("--mpiexec", default="")
    _, rest = parser.parse_known_args(namespace=options)
    unittest.main(module="__main__", argv=[sys.argv[0], *rest])


def environment():
    """More ranks than cores, as root, copies through shared memory: see tests/parallel/CMakeLists.txt."""
    result = dict(os.environ)
    result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                  OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
                  OMPI_MCA_btl_vader_single_copy_mechanism="none", OMP_NUM_THREADS="1")
    return result


class CommandTest(unittest.TestCase):
    """A test with a folder of its own, that runs the command there."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zero3d-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def config(self, name="ds.json", **keys):
        keys.setdefault("train_micro_batch_size_per_gpu", 2)
        keys.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 1e-3}})
        path = self.folder / name
        path.write_text(json.dumps(keys))
        return path

    def train_arguments(self, config=None, model="llama-tiny", steps=2, **more):
        """A short sequential run of a recorded model; `more` are options, dashes as underscores, None to leave one out."""
        folder = MODELS / model if isinstance(model, str) and (MODELS / model).exists() else model
        arguments = {"config": config or self.config(), "model": folder, "data": RUNS / "tokens-257.u16",
                     "data_format": "u16", "order": "sequential", "seq_len": 16, "steps": steps}
        arguments.update(more)
        command = ["train"]
        for name, value in arguments.items():
            if value is None or value is False:
                continue
            command.append("--" + name.replace("_", "-"))
            if value is not True:
                values = value if isinstance(value, list) else [value]
                command.append(str(values[0]))
                for other in values[1:]:
                    command += ["--" + name.replace("_", "-"), str(other)]
        return command

    def run_command(self, arguments, timeout=60, launcher=()):
        command = [*launcher, options.zero3d, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=self.folder,
                              env=environment(), stdin=subprocess.DEVNULL, check=False)

    def succeed(self, arguments, **keywords):
        result = self.run_command(arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def train(self, **keywords):
        return self.succeed(self.train_arguments(**keywords))

    def metrics(self, ranks_under_mpi=0, **keywords):
        """Runs, and returns the records of its metrics file."""
        path = self.folder / "metrics.jsonl"
        arguments = self.train_arguments(metrics=path, **keywords)
        launcher = [*options.mpiexec.split(), str(ranks_under_mpi)] if ranks_under_mpi else []
        self.succeed(arguments, launcher=launcher)
        return read_lines(path)


def read_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def without_times(records):
    return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in records]


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    data = raw[8 + size:]
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def torch_file(tensors):
    """What torch.save writes of {name: (shape, bytes of fp32)}."""
    modules = {"torch": types.ModuleType("torch"), "torch._utils": types.ModuleType("torch._utils")}
    storage_type = type("FloatStorage", (), {"__module__": "torch"})
    modules["torch"].FloatStorage = storage_type

    def rebuild(*_):
        raise AssertionError("nothing calls it")
    rebuild.__module__, rebuild.__name__, rebuild.__qualname__ = "torch._utils", *["_rebuild_tensor_v2"] * 2
    modules["torch._utils"]._rebuild_tensor_v2 = rebuild

    class Storage:
        def __init__(self, key, raw):
            self.id = ("storage", storage_type, str(key), "cpu", len(raw) // 4)

    class Tensor:
        def __init__(self, storage, shape):
            strides = [1] * len(shape)
            for dim in range(len(shape) - 1, 0, -1):
                strides[dim - 1] = strides[dim] * shape[dim]
            self.arguments = (storage, 0, tuple(shape), tuple(strides), False, collections.OrderedDict())

        def __reduce__(self):
            return rebuild, self.arguments

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return obj.id if isinstance(obj, Storage) else None

    state = collections.OrderedDict((name, Tensor(Storage(key, raw), shape))
                                    for key, (name, (shape, raw)) in enumerate(tensors.items()))
    text, out = io.BytesIO(), io.BytesIO()
    with unittest.mock.patch.dict(sys.modules, modules):
        Pickler(text, protocol=2).dump(state)
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/byteorder", "little")
        for key, (_, raw) in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{key}", raw)
    return out.getvalue()
