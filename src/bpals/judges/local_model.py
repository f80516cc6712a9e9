"""A model of Hugging Face on this machine: found and checked in its folder, then loaded without network or pickle."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from PIL import Image

from bpals.errors import JudgeError, MissingExtra, UnknownName, UsageError
from bpals.judges.cards import CardOptions, stated
from bpals.judges.prompts import Pack, PackOptions
from bpals.optional import import_silent
from bpals.registry import LOCAL, option
from bpals.text import several
from bpals.types import Film, JudgeCard, Polarity, Trained

VERSION = "1"
SAID = "Whoever ran it says so."
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")
# What transformers and timm raise at a model that they cannot load.
UNLOADABLE = (ImportError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError)
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# What of a folder could change an answer: configuration, weights, templates, tokenizers, code.
ANSWERING = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "**/*.py")
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py", "README.md")
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
LARGEST_CONFIG_BYTES = 64 * 2**20
NAMESPACE = "torchvision"
# Operators that a torchvision built for another torch lacks, so that its import fails; declared here without code.
OPERATORS = ("nms", "qnms")


@dataclass(frozen=True, kw_only=True)
class LocalOptions(CardOptions):
    """How a model is run in this process, and what you know about it that its files do not say."""

    device: str = option("auto", "auto, cpu, cuda or mps.", panel=LOCAL)
    """`auto` takes a GPU where there is one; else `cpu`, `cuda`, `cuda:1`, `mps`. ONNX runs on the CPU."""
    batch: int | None = option(None, "Questions or films at once.", panel=LOCAL)
    """What goes through the model at once; by default one image on a CPU and 32 on a GPU."""
    cache: Path | None = None
    """Where what is downloaded is kept; by default in the user's cache, or where Hugging Face keeps its models."""

    def __post_init__(self) -> None:
        """Refuse what no model can be run with."""
        if self.device.partition(":")[0] not in DEVICES:
            raise UnknownName.of("device", self.device, DEVICES)
        if self.trained_on_target is not None and self.trained_on_target not in get_args(Trained):
            raise UnknownName.of("trained_on_target", self.trained_on_target, get_args(Trained))
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch is {self.batch}; at least 1 is wanted")


@dataclass(frozen=True, kw_only=True)
class HfOptions(LocalOptions, PackOptions):
    """The options of `hf:`."""

    batch: int = option(8, "Questions or films at once.", panel=LOCAL)
    """Questions of an image (or images, for a dual encoder) that go through the model at once."""
    dtype: str = option("auto", "auto, float32 or bfloat16.", panel=LOCAL)
    """`auto` is float32 on a CPU and what the weights were saved in on a GPU."""
    captions: tuple[str, str] = (
        "Frontal chest radiograph with {phrase}.",
        "Frontal chest radiograph without {phrase}.",
    )
    """What a dual encoder compares an image with: the finding present, the finding absent."""
    allow_code_revision: str = option("", "Run the model's own code, of this commit.", metavar="COMMIT", panel=LOCAL)
    """Runs the model's own code, if it is exactly this: the commit on the hub, or the hash that the refusal names."""
    name: str = ""
    """What it is called in a workspace; default: the model's name."""

    def __post_init__(self) -> None:
        """Refuse what no model can be run with."""
        super().__post_init__()
        if self.dtype not in DTYPES:
            raise UnknownName.of("dtype", self.dtype, DTYPES)
        for caption in self.captions:
            if caption.count("{phrase}") != 1:
                raise UsageError(f"the caption {caption!r} must name {{phrase}} once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model's folder that was checked: it can be loaded without a network and without running foreign code."""

    model: str
    """Its name on the hub, or that of its folder."""
    path: Path
    revision: str
    """The commit on the hub, or `sha256:...` of what lies in the folder."""
    config: Mapping[str, Any]
    licence: str
    """What its README says, in the hub's words; `unknown` where it says nothing."""
    runs_code: bool
    """True where it has code of its own, and the caller has pinned it."""

    @property
    def architecture(self) -> str:
        """The class that the weights were saved from."""
        named = self.config.get("architectures") or [""]
        return str(named[0])


def find_model(
    model: str, revision: str = "", *, allow_code_revision: str = "", cache: Path | None = None
) -> ModelFolder:
    """Find a model in a folder, or on the hub under a pinned commit; a commit in the cache is not fetched again."""
    given = Path(model).expanduser()
    local = given.is_dir()
    path = given.resolve() if local else _fetch(model, revision, cache)
    config = _read_json(path / "config.json", model)
    _check_weights(path, model)
    pin = _sha256(path, ("**/*.py",))[:40] if local else revision
    runs_code = _check_code(path, model, pin=pin, given=allow_code_revision)
    found = f"sha256:{_sha256(path, ANSWERING)}" if local else revision
    if revision not in {"", found}:
        raise JudgeError(
            f"hf:{model}: the folder's content is {found}, not {revision}. Leave @{revision} out, "
            f"or name the folder that you mean"
        )
    return ModelFolder(
        model=path.name if local else model,
        path=path,
        revision=found,
        config=config,
        licence=_licence(path / "README.md"),
        runs_code=runs_code,
    )


def _fetch(model: str, revision: str, cache: Path | None) -> Path:
    """Give the folder of a commit of the hub: from the cache if it is whole there, else downloaded."""
    if not HUB_NAME.fullmatch(model):
        raise JudgeError(f"hf:{model}: there is no such folder, and a name on the hub looks like org/model")
    if not COMMIT.fullmatch(revision):
        given = f"{revision!r} is none" if revision else "none is given"
        raise UsageError(
            f"hf:{model}: there is no such folder, and a model of the hub is pinned by its commit, 40 hex digits; "
            f"{given}. Take it from the model's page under Files, and type hf:{model}@COMMIT"
        )
    hub = import_package("huggingface_hub", model)
    wanted: dict[str, Any] = {"revision": revision, "cache_dir": cache, "allow_patterns": list(WANTED)}
    try:
        return Path(hub.snapshot_download(model, local_files_only=True, **wanted))
    except hub.errors.LocalEntryNotFoundError:
        pass  # not in the cache, or not whole there
    try:
        return Path(hub.snapshot_download(model, **wanted))
    except (OSError, ValueError) as error:
        raise JudgeError(
            f"hf:{model}@{revision} is not in the cache and cannot be downloaded ({first_line(error)}). "
            f"Where there is a network, type: hf download {model} --revision {revision}"
        ) from None


def _check_weights(path: Path, model: str) -> None:
    """Refuse a folder without safetensors, and safetensors that are none."""
    safetensors = import_package("safetensors", model)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
        found = f"only {pickled[0]}, which is a pickle and could run code" if pickled else "no weights"
        raise JudgeError(f"hf:{model}: {path} has {found}. Get the model as .safetensors")
    for file in files:
        try:
            with safetensors.safe_open(file, framework="np"):
                pass
        except (safetensors.SafetensorError, OSError) as error:
            raise JudgeError(
                f"hf:{model}: {file} is not a whole safetensors file ({first_line(error)}). Get it again"
            ) from None


def _check_code(path: Path, model: str, *, pin: str, given: str) -> bool:
    """Return whether the model runs code of its own; refuse it unless exactly this code was pinned."""
    named = list(_named_code(path, model))
    if not named:
        return False
    if elsewhere := [name for name in named if "--" in name]:
        raise JudgeError(
            f"hf:{model} runs code of another repository ({elsewhere[0]}), which no revision pins. "
            f"Copy that code into the folder and name it in auto_map without the `--`"
        )
    if given != pin:
        wrong = f"You allowed {given}, which is other code. " if given else ""
        raise JudgeError(
            f"hf:{model} brings code of its own ({named[0]}), which is not run. {wrong}Read the .py files in {path}; "
            f"if you trust them, type --allow-code-revision {pin} (in Python: allow_code_revision=...)"
        )
    return True


def _named_code(path: Path, model: str) -> Iterator[str]:
    """Name every class that a configuration wants from code beside it."""
    for file in sorted(path.glob("*config*.json")):
        mapped = _read_json(file, model).get("auto_map") or {}
        for value in mapped.values() if isinstance(mapped, dict) else [mapped]:
            yield from (str(name) for name in (value if isinstance(value, list) else [value]) if name)


def _sha256(path: Path, patterns: Iterable[str]) -> str:
    """Hash the files of a folder, each under its name."""
    whole = hashlib.sha256()
    files = {file for pattern in patterns for file in path.glob(pattern) if file.is_file()}
    for file in sorted(files):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{file.relative_to(path).as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()


def _read_json(file: Path, model: str) -> dict[str, Any]:
    if not file.is_file():
        raise JudgeError(f"hf:{model}: {file.parent} is no model: it has no {file.name}. Name the folder that has one")
    if file.stat().st_size > LARGEST_CONFIG_BYTES:
        raise JudgeError(
            f"hf:{model}: {file} has {file.stat().st_size:,} bytes; a configuration has fewer. Get it again"
        )
    try:
        read = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise JudgeError(f"hf:{model}: {file} is not JSON ({first_line(error)}). Get it again") from None
    if not isinstance(read, dict):
        raise JudgeError(f"hf:{model}: {file} is JSON but no object. Get it again")
    return read


def _licence(readme: Path) -> str:
    """Read the licence out of a model card's front matter; an `other` one has a name of its own."""
    if not readme.is_file():
        return "unknown"
    with readme.open(encoding="utf-8", errors="replace") as stream:
        front = re.match(r"---\s*\n(.*?)\n---", stream.read(2**20), re.DOTALL)
    line = r"^(license|license_name):[ \t]*['\"]?([\w .+-]+?)['\"]?[ \t]*$"
    fields = dict(re.findall(line, front[1] if front else "", re.MULTILINE))
    name = fields.get("license", "unknown")
    return str(fields.get("license_name", name) if name == "other" else name)


def import_package(name: str, model: str) -> Any:
    """Import a package of the extra, or name the line that installs it."""
    try:
        return import_silent(name)
    except ModuleNotFoundError:
        raise MissingExtra.of(f"hf:{model}", "torch") from None


def first_line(error: Exception) -> str:
    """Cut an error of another package down to what fits into ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A loaded model and what prepares its inputs."""

    model: Any
    processor: Any
    torch: Any
    transformers: Any
    """The packages themselves, so that nobody imports them before a model is wanted."""
    origin: ModelFolder
    engine: str
    """Versions of what runs it."""
    placement: dict[str, object]
    """Device and number format, for the card."""

    def place(self, inputs: Any) -> Any:
        """Move inputs to the model's device, pixels in its number format."""
        return inputs.to(self.model.device, dtype=self.model.dtype)

    def card(
        self, pack: Pack, options: HfOptions, *, settings: Mapping[str, object], polarities: tuple[Polarity, ...]
    ) -> JudgeCard:
        """Write the card of a judge that runs this model: what the user states wins over what is known."""
        given = (options.licence, options.trained_on_target, options.evidence)
        return JudgeCard(
            judge=options.name or self.origin.model.rsplit("/", 1)[-1],
            kind="image",
            version=VERSION,
            model=self.origin.model,
            revision=self.origin.revision,
            engine=self.engine,
            pack=pack.label,
            preparation={"channels": "RGB", "prepared_by": type(self.processor).__name__},
            settings={**self.placement, **settings},
            polarities=polarities,
            **stated(self.origin.model, given, otherwise=self.origin.licence, by=SAID),
        )


def load_transformer(origin: ModelFolder, options: HfOptions, *, auto: str) -> Transformer:
    """Load a model by one of transformers' auto classes, ready to run."""
    torch, transformers = (import_package(name, origin.model) for name in ("torch", "transformers"))
    device = device_for(options.device, torch)
    dtype = "float32" if options.dtype == "auto" and device == "cpu" else options.dtype
    common = {"local_files_only": True, "trust_remote_code": origin.runs_code}
    try:
        mend_torchvision()
        with quiet(transformers.logging):
            processor = transformers.AutoProcessor.from_pretrained(origin.path, **common)
            model, found = getattr(transformers, auto).from_pretrained(
                origin.path,
                use_safetensors=True,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                output_loading_info=True,
                **common,
            )
    except UNLOADABLE as error:
        raise _unloadable(origin, error) from None
    # Refused, because transformers would fill the holes at random and only warn.
    if gaps := sorted(str(name) for name in (*found.get("missing_keys", ()), *found.get("mismatched_keys", ()))):
        raise JudgeError(
            f"hf:{origin.model}: of its weights {several(len(gaps), 'is', 'are')} missing or of another shape, such as "
            f"{gaps[0]}: random numbers would stand in. Get the model again"
        )
    model.to(device).eval()
    return Transformer(
        model=model,
        processor=processor,
        torch=torch,
        transformers=transformers,
        origin=origin,
        engine=f"transformers {transformers.__version__} / torch {torch.__version__}",
        placement={"device": device.partition(":")[0], "dtype": str(model.dtype).removeprefix("torch.")},
    )


def picture(film: Film) -> Any:
    """Open a film as these models were trained to see one: three equal channels; ValueError where it is none."""
    try:
        with Image.open(io.BytesIO(film.png), formats=["PNG"]) as opened:
            return opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"the film {film.sha256[:12]} cannot be opened: {error}") from None


def device_for(wanted: str, torch: Any) -> str:
    """Choose where a model is run; a device that is not there is refused."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if here[device])
    if not here[wanted.partition(":")[0]]:
        raise UsageError(f"device {wanted} is not there for torch {torch.__version__}. Type --device cpu, or auto")
    return wanted


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Keep transformers from writing and from drawing bars while it loads, and put its settings back."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _unloadable(origin: ModelFolder, error: Exception) -> JudgeError:
    """Make the error of a model that cannot be loaded; transformers hides the first cause behind others."""
    chain: list[BaseException] = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) and link not in chain:
        chain.append(link)
    causes = [" ".join(str(link).split()) for link in chain]
    if torchvision := [cause for cause in causes if "torchvision" in cause.lower()]:
        return JudgeError(
            f"hf:{origin.model} needs a torchvision that fits this torch ({torchvision[-1][:200]}). Install the build "
            f"of torchvision for your torch, or, if the model does without, type: pip uninstall torchvision"
        )
    first = causes[-1][:300] or type(chain[-1]).__name__
    if isinstance(error, ImportError):
        return JudgeError(f"hf:{origin.model} needs a package that is not here ({first}). Install it with pip")
    return JudgeError(f"hf:{origin.model} cannot be loaded from {origin.path} ({first}). Get the model again")


def import_torchvision() -> Any:
    """Import torchvision; raises ImportError where it is not installed, RuntimeError where nothing helps."""
    try:
        return import_module(NAMESPACE)
    except RuntimeError as error:
        if not any(f"{NAMESPACE}::{name}" in str(error) for name in OPERATORS):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == NAMESPACE]:
        del sys.modules[name]
    _declare_operators()
    return import_module(NAMESPACE)


def mend_torchvision() -> None:
    """Make a later import of torchvision work: transformers imports it wherever it is installed, fitting or not."""
    if find_spec(NAMESPACE) is not None:
        import_torchvision()


@cache
def _declare_operators() -> Any:
    """Declare the operators once a process; they last as long as what is given here, which the cache keeps."""
    library = import_module("torch").library.Library(NAMESPACE, "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library
