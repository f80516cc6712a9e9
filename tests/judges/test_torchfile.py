"""Torch and safetensors files are read as their own packages read them, and nothing in them is run."""

import argparse
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shape
from bpals.errors import JudgeError
from bpals.judges.torchfile import Unreadable, read_torch
from bpals.judges.weights import read_weights
from world.saved_weights import MAGIC, PROTOCOL, Call, Global, Outside, numbers, opcodes, write_2017, write_payload

FORMS = ["torch zip", "torch pickle"]


def small():
    """A network of two layers that torch itself has the classes of."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    return torch.nn.Sequential(layers, torch.nn.Flatten(), torch.nn.Linear(4, 2))


def save(thing, path, form):
    """Save as torch does."""
    torch.save(thing, path, _use_new_zipfile_serialization=form == "torch zip")
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_state_dict_and_a_whole_module_give_the_same_weights(tmp_path, form, whole):
    """Also of a module under DataParallel, whose names begin with `module.`."""
    module = small()
    wanted = {f"module.{name}": array for name, array in numbers(module).items()}
    wrapped = torch.nn.DataParallel(module)
    read = read_weights(save(wrapped if whole else wrapped.state_dict(), tmp_path / "w.pt", form))
    assert read.form == form
    assert read.arrays.keys() == wanted.keys()
    assert all(np.array_equal(read.arrays[name], array) for name, array in wanted.items())


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_every_kind_and_views_are_read_as_torch_reads_them(tmp_path, form):
    """Halves, brain floats, doubles, whole numbers, truth values; turned, cut out of a larger one, and empty."""
    base = torch.arange(24.0).reshape(4, 6)
    saved = {
        "turned": base.T,
        "cut": base[1:3, 2:5],
        "half": base.half(),
        "brain": base.bfloat16(),
        "double": base.double(),
        "whole": torch.tensor([[-1, 2], [3, 2**40]]),
        "small": torch.tensor([1, 255], dtype=torch.uint8),
        "truth": torch.tensor([True, False]),
        "single": torch.tensor(7.5),
        "none": torch.zeros(0, 3),
    }
    path = save(saved, tmp_path / "w.pt", form)
    read, said = read_weights(path).arrays, torch.load(path, weights_only=True)
    assert read.keys() == said.keys()
    for name, tensor in said.items():
        assert read[name].shape == tuple(tensor.shape)
        assert np.array_equal(read[name], tensor.float().numpy() if name == "brain" else tensor.numpy()), name


def test_a_file_of_2017_is_read_as_torch_reads_it(tmp_path):
    """Python 2, CUDA storages, `_rebuild_tensor`: torch itself reads the file to the same numbers."""
    wanted = {"module.a.weight": np.arange(6, dtype="f4").reshape(2, 3), "module.a.bias": np.ones(2, "f4")}
    path = write_2017(tmp_path / "m-25012018-123527.pth.tar", wanted, epoch=7, best_loss=0.5)
    said = torch.load(path, weights_only=False, map_location="cpu", encoding="latin1")["state_dict"]
    read = read_weights(path)
    assert read.form == "torch pickle"
    for name, array in wanted.items():
        assert np.array_equal(read.arrays[name], array)
        assert np.array_equal(said[name].numpy(), array)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("under", ["state_dict", "model_state_dict", "model"])
def test_weights_are_found_beside_an_optimiser_and_an_epoch(tmp_path, form, under):
    """What people save with them is left alone: numpy's numbers, arguments, the optimiser's own tensors."""
    module = small()
    optimiser = torch.optim.Adam(module.parameters())
    module(torch.zeros(2, 1, 3, 3)).sum().backward()
    optimiser.step()
    saved = {
        "epoch": 3,
        "best": np.float64(0.1),
        "history": np.arange(3),
        "args": argparse.Namespace(lr=0.1),
        "optimizer": optimiser.state_dict(),
        under: module if under == "model" else module.state_dict(),
    }
    read = read_weights(save(saved, tmp_path / "w.ckpt", form))
    assert read.arrays.keys() == numbers(module).keys()


@pytest.mark.parametrize("form", ["pickle", *FORMS])
@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.ckpt", "w.safetensors"])
def test_m01_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path, form, name):
    """M01: whatever it is called; a plain unpickling of the same file does run it."""
    marker = tmp_path / "marker"
    path = write_payload(tmp_path / name, marker, form)
    with pytest.raises(JudgeError, match=r"(posix|nt)\.system .*run"):
        read_weights(path)
    assert not marker.exists()
    if form == "pickle":
        pickle.loads(path.read_bytes())  # noqa: S301  our own payload
        assert marker.exists()


@pytest.mark.parametrize(
    "named",
    ["builtins eval", "builtins exec", "__builtin__ getattr", "os system", "subprocess Popen", "operator attrgetter",
     "functools partial", "torch.hub load", "torch load", "importlib import_module", "runpy run_path", "pickle loads",
     "numpy.testing._private.utils runstring", "torch._inductor.codecache compile_file", "__main__ Small", "nt system"],
)  # fmt: skip
def test_m01_a_name_that_weights_do_not_need_is_refused(named):
    """M01: called, built, or only named inside what a layer is given; torch's own loaders too."""
    module, _, name = named.partition(" ")
    what = Global(module, name)
    for thing in (Call(what, ("1",)), {"state_dict": what}, Call(Global("torch.nn", "Linear"), (what,))):
        with pytest.raises(Unreadable, match=f"wants {module}.{name} to be called"):
            read_torch(of_opcodes(thing))


def of_opcodes(thing, *storages):
    """A file of the older format, pickled by hand."""
    head = b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, PROTOCOL, {"little_endian": True}))
    keys = pickle.dumps([key for key, _ in storages], protocol=2)
    return head + b"\x80\x02" + opcodes(thing) + b"." + keys + b"".join(content for _, content in storages)


def test_a_layer_is_a_placeholder_that_does_nothing():
    """The class of a layer is never looked up: calling it, building it and changing it only keeps data."""
    whole = read_torch(of_opcodes(Call(Global("torch.nn.modules.linear", "Linear"), ("a", 2)))).whole
    assert (type(whole).__name__, whole.arguments, whole.attributes) == ("Placeholder", ("a", 2), {})


def test_a_pickle_cannot_change_what_it_calls():
    """BUILD on our own function would change it for the next file: refused."""
    changed = opcodes(Global("torch._utils", "_rebuild_parameter")) + opcodes({"a": 1}) + b"b"
    head = b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, PROTOCOL, {}))
    with pytest.raises(Unreadable, match="changes what it calls"):
        read_torch(head + b"\x80\x02" + changed + b"." + pickle.dumps([], protocol=2))


def test_a_pickle_cannot_ask_for_the_whole_memory():
    """Remembering one thing under the number 4,294,967,295 would take 64 GB."""
    head = b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, PROTOCOL, {}))
    with pytest.raises(Unreadable, match="more memory"):
        read_torch(head + b"\x80\x02}r\xff\xff\xff\xff." + pickle.dumps([], protocol=2))


def test_a_dict_with_methods_of_its_own_is_refused(tmp_path):
    """BUILD may cover `items` of an OrderedDict with a husk: nothing but a reason comes of it."""
    covered = opcodes(Call(Global("collections", "OrderedDict"), ())) + opcodes({"items": Global("torch.nn", "Module")})
    head = b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, PROTOCOL, {}))
    path = tmp_path / "w.pt"
    path.write_bytes(head + b"\x80\x02" + covered + b"b." + pickle.dumps([], protocol=2))
    with pytest.raises(JudgeError, match="cannot be loaded"):
        read_weights(path)


@pytest.mark.parametrize(
    ("start", "shape_of", "strides"),
    [(0, (2, 3), (3, 1)), (1, (4,), (1,)), (0, (2,), (4,)), (0, (-1,), (1,)), (-1, (2,), (1,)), (0, (2,), (1, 1)),
     (0, (2**30, 2**30), (0, 0))],
)  # fmt: skip
def test_a_tensor_that_reaches_beyond_its_storage_is_refused(start, shape_of, strides):
    """Four numbers are there."""
    storage = Outside(("storage", Global("torch", "FloatStorage"), "0", "cpu", 4, None))
    thing = {"w": Call(Global("torch._utils", "_rebuild_tensor_v2"), (storage, start, shape_of, strides, None, None))}
    file = read_torch(of_opcodes(thing, ("0", (4).to_bytes(8, "little") + bytes(16))))
    with pytest.raises(Unreadable, match=r"tensor of shape "):
        file.array(file.whole["w"])


def test_a_whole_module_is_read_where_there_is_no_torch(tmp_path):
    """Nothing is imported to read a file: not torch, not the package that it was saved from."""
    path = save(small(), tmp_path / "w.pt", "torch zip")
    code = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from bpals.judges.weights import read_weights
print(len(read_weights(Path(sys.argv[1])).arrays))
"""
    run = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": str(shape.SRC)}, capture_output=True, check=False)
    assert done.stdout.strip() == b"8", done.stderr


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_refused_in_words(tmp_path, form):
    """Cut off anywhere, or with a byte changed anywhere: weights come out, or a reason; nothing else."""
    content = save({"state_dict": {"w": torch.arange(6.0)}}, tmp_path / "w.pt", form).read_bytes()
    dice = random.Random(1)  # noqa: S311  no secret
    damaged = [content[:end] for end in range(0, len(content), 11)]
    for _ in range(200):
        spoilt = bytearray(content)
        spoilt[dice.randrange(len(content))] = dice.randrange(256)
        damaged.append(bytes(spoilt))
    reasons = [reason for each in damaged if (reason := refused(tmp_path / "d.pt", each))]
    assert len(reasons) >= len(content) // 11
    assert all("\n" not in reason for reason in reasons)


def refused(path, content):
    """Say why a file is refused; nothing if it is not."""
    path.write_bytes(content)
    try:
        read_weights(path)
    except JudgeError as error:
        return str(error)
    return ""


def rezipped(path, change):
    """The same zip with its entries changed."""
    written = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(written, "w") as new:
        change({name: old.read(name) for name in old.namelist()}, new)
    return written.getvalue()


def copied(entries, new, **how):
    """Write every entry."""
    for name, content in entries.items():
        new.writestr(name, content, **how)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda entries, new: copied(entries, new, compress_type=zipfile.ZIP_DEFLATED), "compressed"),
        (lambda entries, new: copied(entries | {"w/constants.pkl": b""}, new), "TorchScript, which is a program"),
        (lambda entries, new: copied(entries | {"w/byteorder": b"big"}, new), "big-endian"),
        (lambda entries, new: copied(entries | {"x/data.pkl": b""}, new), "no torch file"),
        (lambda _, new: copied({"readme.txt": b"hello"}, new), "a zip without a data.pkl"),
        (lambda entries, new: copied({k: v for k, v in entries.items() if "/data/" not in k}, new), "has none"),
        (lambda entries, new: copied(entries | {"w/data/0": b"1"}, new), "should have 24 bytes and has 1"),
    ],
)
def test_a_zip_that_torch_did_not_write_so_is_refused(tmp_path, change, why):
    """A bomb, a program, numbers the wrong way round, two archives in one, storages that are missing."""
    path = save({"w": torch.arange(6.0)}, tmp_path / "w.pt", "torch zip")
    path.write_bytes(rezipped(path, change))
    with pytest.raises(JudgeError, match=why):
        read_weights(path)


def written(path, header, body=b"", length=None):
    """A file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def tensor(start, end, shape=(2,), kind="F32"):
    """What a header says of a tensor."""
    return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


def test_every_kind_of_number_is_read_as_it_was_saved(tmp_path):
    """Floats, halves, brain floats, doubles, whole numbers and truth values, with words about the file."""
    base = torch.arange(6.0).reshape(2, 3)
    saved = {
        "a": base,
        "half": base.half(),
        "brain": base.bfloat16(),
        "double": base.double(),
        "whole": base.long(),
        "truth": base > 2,
        "single": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
    }
    path = tmp_path / "w.safetensors"
    save_file(saved, path, metadata={"format": "pt"})
    read = read_weights(path)
    assert read.form == "safetensors"
    assert read.arrays.keys() == saved.keys()
    for name, each in saved.items():
        assert read.arrays[name].shape == tuple(each.shape)
        assert np.array_equal(read.arrays[name], each.float().numpy()), name


M03 = {
    "huge header": (b"{}", b"", 2**40),
    "header beyond the file": (b"{}", b"", 3),
    "overlapping": ({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12), None),
    "the same place twice": ({"a": tensor(0, 8), "b": tensor(0, 8)}, bytes(8), None),
    "a gap": ({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20), None),
    "truncated": ({"a": tensor(0, 8)}, bytes(7), None),
    "more than it says": ({"a": tensor(0, 8)}, bytes(9), None),
    "before the beginning": ({"a": tensor(-8, 0)}, bytes(8), None),
    "other shape": ({"a": tensor(0, 8, (3,))}, bytes(8), None),
    "negative shape": ({"a": tensor(0, 8, (-2,))}, bytes(8), None),
    "a shape of truth values": ({"a": tensor(0, 4, (True,))}, bytes(4), None),
    "enormous shape": ({"a": tensor(0, 8, (2**40, 2**40))}, bytes(8), None),
    "unknown kind": ({"a": tensor(0, 8, kind="F8_E4M3")}, bytes(8), None),
    "no place": ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), None),
    "no object": (b'{"a": 3}', b"", None),
    "no JSON": (b"{,}", b"", None),
    "no UTF-8": (b"{\xff}", b"", None),
    "a deep JSON": (b'{"a":' + b"[" * 100_000, b"", None),
}


@pytest.mark.parametrize(("header", "body", "length"), M03.values(), ids=M03)
def test_m03_a_safetensors_file_whose_header_lies_is_refused(tmp_path, header, body, length):
    """M03: huge header, overlapping offsets, truncated, and all that is near them; in one line."""
    path = written(tmp_path / "w.safetensors", header, body, length)
    with pytest.raises(JudgeError, match=r"w\.safetensors .*: ") as refused:
        read_weights(path)
    assert "\n" not in str(refused.value)


def test_a_file_without_a_tensor_holds_no_weights(tmp_path):
    """It is whole, and empty: what is missing is said by who looks for it."""
    assert read_weights(written(tmp_path / "w.safetensors", b"{}")).arrays == {}
