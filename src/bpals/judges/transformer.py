"""A Hugging Face model in memory: on its device, in its number format, loaded without a network, a pickle or a word."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from PIL import Image

from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges.licence import commercial_use
from bpals.judges.modelfolder import ModelFolder, import_package
from bpals.judges.models import known_models
from bpals.judges.pack import Pack
from bpals.judges.torchvisionops import mend_torchvision
from bpals.plural import several
from bpals.types import Film, JudgeCard, Polarity, Trained

VERSION = "1"
SAID = "Whoever ran it says so."
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")
FORMATS = ("PNG",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HfOptions:
    """How a local model is run, and what you know about it that its folder does not say."""

    device: str = "auto"
    """`auto` takes a GPU where there is one; else `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "auto"
    """`auto` is float32 on a CPU and what the weights were saved in on a GPU."""
    batch: int = 8
    """Questions of a film (or films, for a dual encoder) that go through the model at once."""
    pack: str | Path = "chest"
    """The prompt pack: the name of a shipped one, or a TOML file."""
    captions: tuple[str, str] = (
        "Frontal chest radiograph with {phrase}.",
        "Frontal chest radiograph without {phrase}.",
    )
    """What a dual encoder compares a film with: the finding present, the finding absent."""
    allow_code_revision: str = ""
    """Runs the model's own code, if it is exactly this: the commit on the hub, or the hash that the refusal names."""
    name: str = ""
    """What it is called in a workspace; default: the model's name."""
    licence: str = ""
    """Its licence, where the model's README does not say it."""
    trained_on_target: Trained | None = None
    """Whether it was trained on the labels it judges; None leaves it to what is known of the model."""
    evidence: str = ""
    """How you know; default: that whoever ran it says so."""
    cache: Path | None = None
    """Where models of the hub are kept; default: where Hugging Face keeps them."""

    def __post_init__(self) -> None:
        """Refuse what no model can be run with."""
        if self.device.partition(":")[0] not in DEVICES:
            raise UnknownName.of("device", self.device, DEVICES)
        if self.dtype not in DTYPES:
            raise UnknownName.of("dtype", self.dtype, DTYPES)
        if self.trained_on_target is not None and self.trained_on_target not in get_args(Trained):
            raise UnknownName.of("trained_on_target", self.trained_on_target, get_args(Trained))
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; at least 1 is wanted")
        for caption in self.captions:
            if caption.count("{phrase}") != 1:
                raise UsageError(f"the caption {caption!r} must name {{phrase}} once")


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
        """Write the card of a judge that asks this model: what you pass wins over what is known."""
        known = known_models().get(self.origin.model)
        licence = options.licence or (known.licence if known else self.origin.licence)
        stated = known.commercial_use if known and licence == known.licence else commercial_use(licence)
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
            trained_on_target=options.trained_on_target or (known.trained_on_target if known else "unknown"),
            evidence=options.evidence or (SAID if options.trained_on_target else known.evidence if known else ""),
            licence=licence,
            commercial_use=stated,
        )


def load_transformer(origin: ModelFolder, options: HfOptions, *, auto: str) -> Transformer:
    """Load a model by one of transformers' auto classes, ready to be asked."""
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
    except (ImportError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise _unloadable(origin, error) from None
    _refuse_gaps(origin, found)
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
        with Image.open(io.BytesIO(film.png), formats=FORMATS) as opened:
            return opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"the film {film.sha256[:12]} cannot be opened: {error}") from None


def device_for(asked: str, torch: Any) -> str:
    """Choose where a model is run; a device that is not there is refused."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if asked == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if here[device])
    if not here[asked.partition(":")[0]]:
        raise UsageError(f"device {asked} is not there for torch {torch.__version__}. Type --device cpu, or auto")
    return asked


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


def _refuse_gaps(origin: ModelFolder, found: dict[str, Any]) -> None:
    """Refuse weights with holes: transformers would fill them at random and say so only in a warning."""
    gaps = sorted(str(name) for name in (*found.get("missing_keys", ()), *found.get("mismatched_keys", ())))
    if gaps:
        raise JudgeError(
            f"hf:{origin.model}: of its weights {several(len(gaps), 'is', 'are')} missing or of another shape, such as "
            f"{gaps[0]}: random numbers would stand in. Get the model again"
        )


def _unloadable(origin: ModelFolder, error: Exception) -> JudgeError:
    """Say what kept a model from being loaded; transformers hides the first cause behind others."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    causes = [" ".join(str(link).split()) for link in chain]
    if torchvision := [said for said in causes if "torchvision" in said.lower()]:
        return JudgeError(
            f"hf:{origin.model} needs a torchvision that fits this torch ({torchvision[-1][:200]}). Install the build "
            f"of torchvision for your torch, or, if the model does without, type: pip uninstall torchvision"
        )
    said = causes[-1][:300] or type(chain[-1]).__name__
    if isinstance(error, ImportError):
        return JudgeError(f"hf:{origin.model} needs a package that is not here ({said}). Install it with pip")
    return JudgeError(f"hf:{origin.model} cannot be loaded from {origin.path} ({said}). Get the model again")
