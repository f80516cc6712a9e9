"""Files of weights that torch or safetensors saved, read without either package and without running anything.

A torch file is a pickle, and a pickle may name any function of any package to be called. Here a name is never looked
up: the names that weights need stand for harmless things of our own, an object of another package becomes a
`Placeholder` that only holds its attributes, and any other name refuses the file before anything is built of it.

zip           `archive/data.pkl` and one file per storage, since torch 1.6
pickle        five pickles and then the storages, before it; also where a file is called `.pth.tar`
safetensors   a header in JSON that says where each tensor lies, then the tensors
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

# The first number of the older torch format, and its version: there is no other.
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
# Bytes of a safetensors header: the format's own limit.
LARGEST_HEADER = 100_000_000
# What to do about a file that is not whole.
AGAIN = "Download it again, and compare its sha256 with the one that its makers publish"

Array = npt.NDArray[Any]

# The upper half of a float; numpy has no such number.
BFLOAT16 = "bfloat16"
# Torch's name for a kind of storage -> numpy's name for the numbers in it.
STORAGES: Mapping[str, str] = {
    "BoolStorage": "?", "ByteStorage": "u1", "CharStorage": "i1", "ShortStorage": "<i2", "IntStorage": "<i4",
    "LongStorage": "<i8", "HalfStorage": "<f2", "BFloat16Storage": BFLOAT16, "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
}  # fmt: skip
# The same for safetensors.
NUMBERS: Mapping[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "F16": "<f2", "BF16": BFLOAT16, "F32": "<f4", "F64": "<f8",
}  # fmt: skip

# Names in checkpoints beside weights: classes of layers, and what people save with them. All become placeholders.
HARMLESS = (
    "torch.nn.", "torch.optim.", "torchvision.models.", "torchxrayvision.", "torch.utils.hooks.",
    "torch.autograd.variable.Variable", "torch.bfloat16", "torch.device", "torch.float",
    "numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct", "numpy.dtype", "numpy.ndarray", "_codecs.encode", "argparse.Namespace",
)  # fmt: skip


class Unreadable(Exception):
    """A file that is not what it should be, or holds what must not be run: why, in words."""


class Placeholder:
    """An object of another package: its arguments and its attributes, without anything that it does."""

    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    # In __new__, because a pickle may make an object without calling __init__.
    def __new__(cls, *arguments: Any, **_named: Any) -> Self:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.arguments, made.attributes = arguments, {}
        return made

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        """Do nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes."""
        if isinstance(state, dict):
            self.attributes = state


class _Maker:
    """A function of ours that a pickle may call and cannot change."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, _state: Any) -> None:
        raise Unreadable("it changes what it calls")


class _Kind(NamedTuple):
    """A kind of number; a tuple, because a pickle cannot change one."""

    number: str

    @property
    def size(self) -> int:
        """Bytes of one number."""
        return 2 if self.number == BFLOAT16 else np.dtype(self.number).itemsize

    def read(self, content: memoryview) -> Array:
        """Read all numbers."""
        if self.number == BFLOAT16:
            return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
        return np.frombuffer(content, self.number)


class _Storage(NamedTuple):
    """Which storage a tensor lies in; its bytes may come later in the file."""

    key: str
    kind: _Kind
    length: int
    start: int = 0


class Tensor(NamedTuple):
    """A tensor as a pickle describes it."""

    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """What a file holds: an object of plain containers, placeholders and tensors, and the bytes of the tensors."""

    whole: Any
    form: str
    """`torch zip` or `torch pickle`."""
    storages: Mapping[str, memoryview]

    def array(self, tensor: Tensor) -> Array:
        """Read one tensor; one that reaches beyond its storage is refused."""
        storage, kind = tensor.storage, tensor.storage.kind
        content = self.storages.get(storage.key)
        if content is None or len(content) != storage.length * kind.size:
            found = "none" if content is None else f"{len(content):,} bytes"
            raise Unreadable(
                f"storage {storage.key!r} should have {storage.length * kind.size:,} bytes and has {found}"
            )
        numbers = kind.read(content)
        start, shape, strides = storage.start + tensor.start, tensor.shape, tensor.strides
        if len(shape) != len(strides) or min((start, *shape, *strides)) < 0 or math.prod(shape) > len(numbers):
            raise Unreadable(f"a tensor of shape {shape} cannot lie in {len(numbers):,} numbers")
        last = start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= len(numbers):
            raise Unreadable(f"a tensor of shape {shape} reaches beyond its {len(numbers):,} numbers")
        steps = [stride * numbers.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(numbers[min(start, len(numbers)) :], shape, steps, writeable=False)


def read_torch(content: bytes) -> TorchFile:
    """Read a torch file of either format, or raise Unreadable."""
    try:
        return _read_zip(content) if content[:4] == b"PK\x03\x04" else _read_pickles(content)
    except zipfile.BadZipFile as error:
        raise Unreadable(
            f"it begins as a zip of torch's and is no whole one ({error}; {len(content):,} bytes): "
            f"a download that was cut off or damaged. {AGAIN}"
        ) from None
    except (struct.error, EOFError):
        raise Unreadable(f"it is cut off. {AGAIN}") from None
    except (pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise Unreadable(f"it is no torch file ({' '.join(str(error).split())[:120]}). {AGAIN}") from None
    except (MemoryError, OverflowError):
        raise Unreadable("it asks for more memory than a file of weights may") from None


def _read_zip(content: bytes) -> TorchFile:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        [root] = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")] or [""]
        if not root:
            raise Unreadable("it is a zip without a data.pkl: torch did not save it")
        if f"{root}constants.pkl" in names:
            raise Unreadable("it is TorchScript, which is a program. Save the state_dict of the model instead")
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > len(content):
            raise Unreadable("it is compressed, or its parts overlap: torch saves neither")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise Unreadable("its numbers are big-endian. Save it on a little-endian machine")
        whole = _Inert(io.BytesIO(archive.read(f"{root}data.pkl"))).load()
        data = f"{root}data/"
        storages = {name.removeprefix(data): memoryview(archive.read(name)) for name in names if name.startswith(data)}
    return TorchFile(whole=whole, form="torch zip", storages=storages)


def _read_pickles(content: bytes) -> TorchFile:
    stream = io.BytesIO(content)
    magic, version, system = (_Inert(stream).load() for _ in range(3))
    if magic != MAGIC or version != VERSION or not isinstance(system, dict):
        raise Unreadable("it is a pickle, but none that torch saved")
    if not system.get("little_endian", True):
        raise Unreadable("its numbers are big-endian. Save it on a little-endian machine")
    inert = _Inert(stream)
    whole = inert.load()
    storages = {}
    for key in _Inert(stream).load():
        (count,) = struct.unpack("<q", stream.read(8))
        if key not in inert.sizes or not 0 <= count * inert.sizes[key] <= len(content) - stream.tell():
            raise Unreadable(f"storage {key!r} is cut off, or nothing lies in it. {AGAIN}")
        start = stream.tell()
        stream.seek(start + count * inert.sizes[key])
        storages[key] = memoryview(content)[start : stream.tell()]
    return TorchFile(whole=whole, form="torch pickle", storages=storages)


class _Inert(pickle.Unpickler):
    """An unpickler that looks nothing up: every name it knows is a thing of our own."""

    def __init__(self, stream: io.BytesIO) -> None:
        _check_memo(stream)
        # Python 2 wrote bytes for text; latin-1 reads any of them.
        super().__init__(stream, encoding="latin-1")
        self.sizes: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Give what stands for a name; one that is not known refuses the file, whatever it is."""
        full = f"{module}.{name}"
        if full in KNOWN:
            return KNOWN[full]
        kind = STORAGES.get(name)
        if kind and module in {"torch", "torch.cuda", "torch.storage"}:
            return _Kind(kind)
        if full.startswith(HARMLESS):
            return Placeholder
        raise Unreadable(
            f"it wants {full} to be called, which weights do not need; nothing of it was run. If you trust it, load it "
            "where it was made and save its state_dict() with safetensors.torch.save_file"
        )

    def persistent_load(self, pid: Any) -> Any:
        """Give the storage that is meant; an older file names the classes of its layers in the same way."""
        if pid[0] == "module":
            return pid[1]
        kind, key, count = pid[1], str(pid[2]), int(pid[4])
        if pid[0] != "storage" or not isinstance(kind, _Kind):
            raise Unreadable("it refers to something outside itself")
        self.sizes[key] = kind.size
        view = pid[5] if len(pid) > 5 else None
        return _Storage(key, kind, count, int(view[1]) if view else 0)


def _check_memo(stream: io.BytesIO) -> None:
    """Refuse a pickle that remembers something under a huge number: Python would take memory for all smaller ones."""
    start, most = stream.tell(), len(stream.getbuffer())
    for opcode, given, _ in pickletools.genops(stream):
        if opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"} and isinstance(given, int) and given > most:
            raise MemoryError
    stream.seek(start)


def _tensor(storage: Any, start: Any, shape: Sequence[Any], strides: Sequence[Any], *_: Any) -> Tensor:
    if not isinstance(storage, _Storage):
        raise Unreadable("a tensor without a storage")
    return Tensor(storage, int(start), tuple(map(int, shape)), tuple(map(int, strides)))


_NEW, _TENSOR, _PARAMETER = _Maker(lambda *_: Placeholder()), _Maker(_tensor), _Maker(lambda tensor, *_: tensor)
# What a name in a pickle stands for.
KNOWN: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": _Maker(lambda *_: {}),
    "builtins.dict": dict,
    "builtins.list": list,
    "builtins.set": set,
    "builtins.object": Placeholder,
    "__builtin__.set": set,
    "__builtin__.object": Placeholder,
    "copyreg._reconstructor": _NEW,
    "copy_reg._reconstructor": _NEW,
    "torch.Size": _Maker(lambda values=(): tuple(values)),
    "torch._utils._rebuild_tensor": _TENSOR,
    "torch._utils._rebuild_tensor_v2": _TENSOR,
    "torch._utils._rebuild_parameter": _PARAMETER,
    "torch._utils._rebuild_parameter_with_state": _PARAMETER,
}


class _Place(NamedTuple):
    """Where a tensor lies."""

    start: int
    end: int
    name: str
    kind: str
    shape: tuple[int, ...]


def is_safetensors(content: bytes) -> bool:
    """Tell the format by its beginning: the length of a header that begins with a brace."""
    return content[8:9] == b"{"


def read_safetensors(content: bytes) -> dict[str, Array]:
    """Read every tensor, or raise Unreadable."""
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(LARGEST_HEADER, len(content) - 8):
        raise Unreadable(f"its header should have {length:,} bytes, and the whole file has {len(content):,}. {AGAIN}")
    body = memoryview(content)[8 + length :]
    places = sorted(_places(content[8 : 8 + length]))
    _check_cover(places, len(body))
    return {
        place.name: _Kind(NUMBERS[place.kind]).read(body[place.start : place.end]).reshape(place.shape)
        for place in places
    }


def _places(header: bytes) -> list[_Place]:
    try:
        written = json.loads(header)
        del written["__metadata__"]
    except KeyError:
        pass
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"its header is no JSON object ({error})") from None
    try:
        return [_place(name, facts) for name, facts in written.items()]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Unreadable(f"its header does not say where its tensors lie ({error!r})") from None


def _place(name: str, facts: Mapping[str, Any]) -> _Place:
    start, end = facts["data_offsets"]
    shape, kind = tuple(facts["shape"]), facts["dtype"]
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise Unreadable(f"{name} has a shape {shape} or a place [{start}, {end}] that is none")
    if kind not in NUMBERS:
        raise Unreadable(f"{name} is of the kind {kind}; known are {', '.join(NUMBERS)}")
    if end - start != math.prod(shape) * _Kind(NUMBERS[kind]).size:
        raise Unreadable(f"{name} has the shape {shape} in {kind}, and {end - start:,} bytes")
    return _Place(start, end, name, kind, shape)


def _check_cover(places: list[_Place], size: int) -> None:
    """Refuse tensors that overlap, leave gaps, or end elsewhere than the file."""
    reached = 0
    for place in places:
        if place.start != reached:
            what = "overlaps the tensor before it" if place.start < reached else "leaves a gap before it"
            raise Unreadable(f"{place.name} begins at byte {place.start:,} and not at {reached:,}: it {what}")
        reached = place.end
    if reached != size:
        what = "is cut off" if reached > size else "goes on after its last tensor"
        raise Unreadable(f"its tensors have {reached:,} bytes, and {size:,} are there: it {what}. {AGAIN}")
