"""Checkpoints as judges: recipes, framing, networks, and that each answers what its own network answers."""

import functools
import hashlib
import http.server
import json
import math
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from safetensors.torch import save_file

import shape
from bpals.cli.main import obey
from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.images.prepare import Preparation, prepare
from bpals.judges.checkpoint import CheckpointOptions, as_logits, find_recipe, open_checkpoint, open_network, show
from bpals.judges.local_model import import_torchvision, picture
from bpals.judges.weights import Weights
from bpals.registry import find, parse_spec
from bpals.testing import check_image_judge, tiny_film
from bpals.types import ImageJudge
from world import datasets
from world.saved_weights import as_2017, network, numbers, write_2017, write_payload
from world.words import mentions

FILMS = [tiny_film(seed=seed, side_px=96) for seed in range(4)]
KINDS = ("xrv", "chexnet", "densenet121", "resnet50")


@pytest.fixture(scope="module")
def modules():
    """Each kind's network with random weights."""
    densenet = network("densenet121", seed=2)
    return {
        "xrv": network("densenet121", channels=1, outputs=18, seed=1),
        "chexnet": densenet,
        "densenet121": densenet,
        "resnet50": network("resnet50", seed=4),
    }


@pytest.fixture(scope="module")
def files(modules, tmp_path_factory):
    """The same as files: a whole pickle, a CheXNet of 2017, a wrapped state dict under `module.`, safetensors."""
    folder = tmp_path_factory.mktemp("weights")
    named = {kind: folder / f"{kind}.pt" for kind in KINDS}
    named["xrv"] = folder / "nih-densenet121-d121-best.pt"
    torch.save(modules["xrv"], named["xrv"])
    write_2017(named["chexnet"], as_2017(numbers(modules["chexnet"])), epoch=1, arch="DENSE-NET-121")
    wrapped = torch.nn.DataParallel(modules["densenet121"]).state_dict()
    torch.save({"state_dict": wrapped, "epoch": 3}, named["densenet121"], _use_new_zipfile_serialization=False)
    named["resnet50"] = folder / "resnet50.safetensors"
    save_file(modules["resnet50"].state_dict(), named["resnet50"])
    return named


@pytest.fixture(scope="module")
def judges(files):
    """Each of them, opened once."""
    return {kind: open_checkpoint(kind, str(files[kind]), device="cpu") for kind in KINDS}


def directly(module, kind, film):
    """What a network says of a film in a plain forward pass: label -> logit."""
    recipe = find_recipe(kind, "w.pt")
    shown = torch.from_numpy(show(picture(film).getchannel("R"), recipe))[None]
    with torch.inference_mode():
        return dict(zip(recipe.labels, module(shown)[0].tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_are_those_of_the_network(modules, judges, kind):
    """Each of the 14 findings gets the logit of its own output."""
    questions = judges[kind].questions(NIH)
    assert [question.subject for question in questions] == list(NIH.findings)
    for film in FILMS[:2]:
        wanted = directly(modules[kind], kind, film)
        replies = judges[kind].ask(film, questions)
        assert [reply.outcome for reply in replies] == ["answered"] * 14
        # Logits of about 26 in 32-bit floats: another processor's kernels were seen to differ by 1.4e-5.
        assert [reply.logit for reply in replies] == pytest.approx([wanted[name] for name in NIH.findings], abs=1e-4)


@pytest.mark.parametrize("kind", ["xrv", "resnet50"])
def test_the_contract_of_image_judges_is_kept(judges, files, kind):
    """Also that the same file gives the same judge again."""
    assert isinstance(judges[kind], ImageJudge)
    again = open_checkpoint(kind, str(files[kind]), device="cpu") if kind == "xrv" else None
    assert check_image_judge(judges[kind], NIH, FILMS[:2], again=again) == ()


def test_the_card_says_what_the_weights_are_and_what_is_done_to_a_film(judges, files):
    """The hash, the labels, the scale, that operating points are not applied, and that it knows NIH's labels."""
    card = judges["xrv"].card
    assert (card.judge, card.model) == ("xrv-nih", "xrv:nih-densenet121-d121-best.pt")
    assert card.revision == f"sha256:{hashlib.sha256(files['xrv'].read_bytes()).hexdigest()}"
    assert card.engine.startswith("torch ")
    assert card.preparation["input"]["framing"] == "crop, resize"
    assert card.settings["labels"][13:15] == ["Hernia", ""]
    assert (card.settings["output"], card.settings["op_threshs"]) == ("sigmoid", "not applied")
    assert (card.trained_on_target, card.polarities) == ("yes", ("present",))
    assert "NIH ChestX-ray14" in card.evidence
    assert judges["chexnet"].card.trained_on_target == "yes"
    assert judges["densenet121"].card.trained_on_target == judges["resnet50"].card.trained_on_target == "unknown"
    assert len({judge.card.fingerprint for judge in judges.values()}) == 4


def test_what_you_say_of_the_weights_wins(files):
    """The licence too; how it is known is that you said so."""
    path = str(files["xrv"])
    card = open_checkpoint("xrv", path, trained_on_target="no", licence="Apache-2.0", recipe="chex").card
    assert (card.trained_on_target, card.evidence) == ("no", "Whoever ran it says so.")
    assert (card.licence, card.commercial_use, card.judge) == ("Apache-2.0", "yes", "xrv-chex")


def test_a_finding_without_a_trained_output_is_unsupported(files):
    """CheXpert has no hernia; labels that the dataset lacks are never asked about."""
    judge = open_checkpoint("xrv", str(files["xrv"]), recipe="chex", device="cpu")
    said = dict(zip(NIH.findings, judge.ask(FILMS[0], judge.questions(NIH)), strict=True))
    assert {finding for finding, reply in said.items() if reply.outcome == "unsupported"} == {
        "Infiltration", "Emphysema", "Fibrosis", "Pleural_Thickening", "Nodule", "Mass", "Hernia"}  # fmt: skip
    assert said["Hernia"].why.endswith(" Hernia")
    with pytest.raises(JudgeError, match="none of the findings of other"):
        judge.questions(Vocabulary(name="other", findings=("Scoliosis",)))


def test_no_answer_depends_on_how_many_films_are_asked_at_once(files, tmp_path):
    """A batch that is not full is filled up with nothing: one film, two films and four give the same bits."""
    (tmp_path / "r.toml").write_text("side_px = 64\nresize_px = 64\n")
    path, recipe = str(files["densenet121"]), tmp_path / "r.toml"
    judge = open_checkpoint("densenet121", path, batch=3, device="cpu", recipe=recipe)
    questions = judge.questions(NIH)
    alone = [[reply.logit for reply in judge.ask(film, questions)] for film in FILMS]
    for films in (FILMS, FILMS[:2], FILMS[::-1]):
        said = [[reply.logit for reply in row] for row in judge.ask_batch(films, questions)]
        assert said == [alone[FILMS.index(film)] for film in films]
    assert [reply.outcome for reply in judge.ask_batch([FILMS[0], None], questions)[1]] == ["unsupported"] * 14


@pytest.fixture(scope="module")
def originals(data_folder):
    """The 30 original films of NIH, as a judge is shown them."""
    paths = sorted((data_folder / "images" / "originals").iterdir())
    return [prepare(path.read_bytes(), Preparation()).film for path in paths]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("xrv", 30),
        ("chexnet", 30),
        ("densenet121", 6),
        ("resnet50", 6),
        pytest.param("densenet121", 30, marks=pytest.mark.sweep),
        pytest.param("resnet50", 30, marks=pytest.mark.sweep),
    ],
)
def test_the_30_original_films_get_the_same_scores_again(judges, files, originals, kind, count):
    """Every film gets a number for each of the 14; opened again, the judge gives the same to the last bit."""
    assert len(originals) == 30
    questions = judges[kind].questions(NIH)
    said = [[reply.logit for reply in judges[kind].ask(film, questions)] for film in originals[:count]]
    assert all(math.isfinite(value) for row in said for value in row)
    assert len({tuple(row) for row in said}) == count
    again = open_checkpoint(kind, str(files[kind]), device="cpu")
    for place in (0, count // 2, count - 1):
        assert [reply.logit for reply in again.ask(originals[place], questions)] == said[place]


XRV = """
import sys, warnings
import numpy as np
from bpals.judges.local_model import import_torchvision
import_torchvision()
import torch
import torchxrayvision as xrv
warnings.simplefilter("ignore")
torch.manual_seed(5)
model = xrv.models.DenseNet(weights=None)
for name, value in model.named_buffers():
    if name.endswith("running_var"):
        value.uniform_(1e5, 2e5) if name == "features.norm0.running_var" else value.uniform_(0.5, 2)
model.pathologies = model.targets = [*xrv.models.DenseNet.targets[:14], "", "", "", ""]
model.eval()
folder = sys.argv[1]
torch.save(model, f"{folder}/new.pt")
torch.save(model, f"{folder}/old.pt", _use_new_zipfile_serialization=False)
torch.save(model.state_dict(), f"{folder}/state.pt")
shown = np.load(f"{folder}/shown.npy")
scaled = xrv.utils.normalize(shown, 255)[:, None]
with torch.inference_mode():
    said = model(torch.from_numpy(scaled)).numpy()
thresholds = torch.full((18,), 0.3)
model.op_threshs = thresholds
with torch.inference_mode():
    moved = model(torch.from_numpy(scaled)).numpy()
np.savez(f"{folder}/said.npz", said=said, moved=moved, targets=xrv.models.DenseNet.targets)
"""


@pytest.fixture(scope="module")
def xrv_folder(tmp_path_factory):
    """What torchxrayvision's own DenseNet saves and says, in a process of its own."""
    pytest.importorskip("torchxrayvision", reason="pip install torchxrayvision")
    folder = tmp_path_factory.mktemp("xrv")
    square = [picture(tiny_film(seed=seed, side_px=224)).getchannel("R") for seed in range(2)]
    np.save(folder / "shown.npy", np.stack([np.asarray(each) for each in square]))
    done = subprocess.run(
        [sys.executable, "-c", XRV, str(folder)],
        env=os.environ | {"PYTHONPATH": str(shape.SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("file", ["new.pt", "old.pt", "state.pt"])
def test_torchxrayvision_itself_says_the_same(xrv_folder, file):
    """Its whole module in both of torch's formats, as it is published, and its state dict: the same 18 numbers."""
    judge = open_checkpoint("xrv", str(xrv_folder / file), device="cpu")
    made = np.load(xrv_folder / "said.npz")
    assert tuple(made["targets"]) == find_recipe("xrv", "w.pt").labels
    everything = Vocabulary(name="xrv", findings=tuple(made["targets"]))
    questions = judge.questions(everything)
    for seed, wanted in enumerate(made["said"].tolist()):
        replies = judge.ask(tiny_film(seed=seed, side_px=224), questions)
        count = 18 if file == "state.pt" else 14
        assert [reply.logit for reply in replies[:count]] == pytest.approx(wanted[:count], abs=1e-4)
        assert {reply.outcome for reply in replies[count:]} == ({"unsupported"} if count == 14 else set())


def test_operating_points_move_a_half_and_are_not_applied(xrv_folder):
    """What torchxrayvision gives with op_threshs of .3 is another number for the same film; ours is the raw sigmoid."""
    made = np.load(xrv_folder / "said.npz")
    p, moved = 1 / (1 + np.exp(-made["said"].astype(float))), made["moved"]
    below = p < 0.3
    assert moved[below] == pytest.approx(p[below] / 0.6, abs=1e-5)
    assert np.abs(moved - p).max() > 0.05


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.ckpt", "w.safetensors"])
@pytest.mark.parametrize("kind", ["xrv", "chexnet"])
def test_m01_a_judge_is_never_made_of_a_pickle_with_code(capsys, tmp_path, kind, name):
    """M01: the command refuses it in one line before anything runs."""
    marker = tmp_path / "marker"
    path = write_payload(tmp_path / name, marker, "torch zip")
    words = ["judge", "run", f"{kind}:{path}", "--images", str(tmp_path), "--workspace", str(tmp_path / "audit")]
    assert obey(words) == 2
    assert "nothing of it was run" in capsys.readouterr().err
    assert not marker.exists()


def test_m02_a_hash_is_checked_and_may_be_written_either_way(files):
    """M02: with or without `sha256:`, in large or small letters; another one is refused with both."""
    found = hashlib.sha256(files["chexnet"].read_bytes()).hexdigest()
    for written in (found, f"sha256:{found}", found.upper()):
        spec = parse_spec(f"chexnet:{files['chexnet']}@{written}")
        assert find(spec.kind)(spec.target, spec.revision).card.revision == f"sha256:{found}"
    with pytest.raises(JudgeError, match=f"has the sha256 {found}, not {'a' * 64}"):
        open_checkpoint("chexnet", str(files["chexnet"]), "a" * 64)
    with pytest.raises(UsageError, match="'v1' is no sha256"):
        open_checkpoint("chexnet", str(files["chexnet"]), "v1")


def test_a_file_with_an_at_in_its_name_is_found(files, tmp_path):
    """`weights@2.pt` is a file, not a hash."""
    path = tmp_path / "weights@2.pt"
    path.symlink_to(files["densenet121"])
    spec = parse_spec(f"densenet121:{path}")
    assert find(spec.kind)(spec.target, spec.revision).card.model == "densenet121:weights@2.pt"
    with pytest.raises(JudgeError, match="there is no such file"):
        open_checkpoint("densenet121", str(tmp_path / "none.pt"))


def test_options_that_cannot_be_are_refused(files):
    """A device, a batch, a word."""
    for options, error in (
        ({"device": "tpu"}, UnknownName),
        ({"batch": 0}, UsageError),
        ({"trained_on_target": "maybe"}, UnknownName),
    ):
        with pytest.raises(error):
            CheckpointOptions(**options)
    with pytest.raises(UsageError, match="is not there"):
        open_checkpoint("xrv", str(files["xrv"]), device="cuda")


# ---- output


def test_outputs_become_log_odds():
    """A sigmoid's input is one already; softmax and probabilities are turned; what is no probability is refused."""
    raw = np.array([[0.3, -2.0, 40.0]])
    assert np.array_equal(as_logits(raw, "sigmoid"), raw)
    p = np.array([[0.2, 0.5, 0.3]])
    assert as_logits(p, "probability") == pytest.approx(np.log(p / (1 - p)))
    assert as_logits(np.log(p) + 7, "softmax") == pytest.approx(np.log(p / (1 - p)))
    assert np.isfinite(as_logits(np.array([[0.0, 1.0]]), "probability")).all()
    with pytest.raises(ValueError, match="no probabilities"):
        as_logits(raw, "probability")


# ---- ONNX


def write_onnx(path, *, batch="n", side=32, channels=1, outputs=2, external=""):
    """The mean of a film, times 2 and times -3."""
    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [channels, outputs], ([2.0, -3.0] * channels)[: channels * outputs]
    )
    if external:
        weight.ClearField("float_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=external)
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["x"], ["m"]),
            helper.make_node("Flatten", ["m"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, outputs])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


RECIPE = """
labels = ["Effusion", "Mass"]
channels = 1
mean = [0.0]
std = [1.0]
framing = "stretch"
side_px = 32
trained_on_target = "no"
evidence = "It is made by hand."
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe for that network."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("batch", ["n", 2])
def test_an_onnx_file_is_asked_by_its_recipe(tmp_path, recipe, batch):
    """By value: 2 and -3 times the mean grey; a file that takes two films at once is given two."""
    judge = open_checkpoint("onnx", str(write_onnx(tmp_path / "My Net.onnx", batch=batch)), recipe=recipe)
    questions = judge.questions(NIH)
    for film in FILMS[:2]:
        mean = np.asarray(picture(film).getchannel("R").resize((32, 32), 2)).mean() / 255
        said = {q.subject: reply for q, reply in zip(questions, judge.ask(film, questions), strict=True)}
        assert said["Effusion"].logit == pytest.approx(2 * mean, abs=1e-5)
        assert said["Mass"].logit == pytest.approx(-3 * mean, abs=1e-5)
        assert said["Hernia"].outcome == "unsupported"
    assert (judge.card.judge, judge.card.trained_on_target) == ("my-net", "no")
    assert judge.card.engine.startswith("onnxruntime ")
    assert check_image_judge(judge, NIH, FILMS[:2]) == ()


def test_an_onnx_file_that_does_not_fit_is_refused_before_a_run(tmp_path, recipe):
    """Other channels or side, another number of outputs, no ONNX, another hash, a device, no recipe."""
    right = write_onnx(tmp_path / "w.onnx")
    opened = functools.partial(open_checkpoint, "onnx", recipe=recipe)
    with pytest.raises(JudgeError, match=r" x .*recipe.*\[1, 32, 32\]"):
        opened(str(write_onnx(tmp_path / "c.onnx", channels=3)))
    with pytest.raises(JudgeError, match=r"recipe.*floats"):
        opened(str(write_onnx(tmp_path / "s.onnx", side=64)))
    with pytest.raises(JudgeError, match=r" y .*\(1, 1\).* 2 labels"):
        opened(str(write_onnx(tmp_path / "o.onnx", outputs=1)))
    with pytest.raises(JudgeError, match=r"has the sha256 .*, not a{64}"):
        opened(str(right), "a" * 64)
    with pytest.raises(UsageError, match="runs on the CPU"):
        opened(str(right), device="cuda")
    with pytest.raises(UsageError, match="outputs mean"):
        open_checkpoint("onnx", str(right))
    for content, told in (
        (b"nothing", "no ONNX file"),
        (b"<!doctype html><html>404", "it is a web page that was saved"),
    ):
        (tmp_path / "n.onnx").write_bytes(content)
        with pytest.raises(JudgeError, match=told):
            opened(str(tmp_path / "n.onnx"))


def test_an_onnx_file_reads_no_other_file(tmp_path, recipe, monkeypatch):
    """Weights that lie outside it are not what was hashed: refused, in the folder of the file and in this one."""
    path = write_onnx(tmp_path / "w.onnx", external="w.bin")
    (tmp_path / "w.bin").write_bytes(np.array([2, -3], "<f4").tobytes())
    monkeypatch.chdir(tmp_path)
    onnx.checker.check_model(str(path))
    with pytest.raises(JudgeError, match="no ONNX file"):
        open_checkpoint("onnx", "w.onnx", recipe=recipe)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, *_):
        """Say nothing."""


def test_weights_behind_an_address_are_pinned_and_kept(tmp_path, recipe):
    """Fetched once, opened from the cache after the server is gone; the card has the name and the hash."""
    (tmp_path / "served").mkdir()
    file = write_onnx(tmp_path / "served" / "net.onnx")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    handler = functools.partial(Quiet, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        spec = parse_spec(f"onnx:http://127.0.0.1:{server.server_port}/net.onnx@{found}")
        first = find("onnx")(spec.target, spec.revision, recipe=recipe, cache=tmp_path / "cache")
        server.shutdown()
        thread.join()
    again = find("onnx")(spec.target, spec.revision, recipe=recipe, cache=tmp_path / "cache")
    assert first.card.fingerprint == again.card.fingerprint
    assert (again.card.model, again.card.revision) == ("onnx:net.onnx", f"sha256:{found}")


def test_the_example_that_writes_onnx_gives_the_same_judge(capsys, files, judges, tmp_path):
    """examples/checkpoint_to_onnx.py: the same labels, and the same numbers to a thousandth, from the 2017 file."""
    out = tmp_path / "net.onnx"
    runpy.run_path(str(shape.ROOT / "examples" / "checkpoint_to_onnx.py"))["export"]("chexnet", files["chexnet"], out)
    found = hashlib.sha256(out.read_bytes()).hexdigest()
    told = capsys.readouterr().out
    assert f"{out}: " in told
    assert f"bpals judge run onnx:{out}@{found} --recipe {out.with_suffix('.toml')} --images PATH" in told
    judge = open_checkpoint("onnx", str(out), recipe=out.with_suffix(".toml"))
    assert judge.card.trained_on_target == "yes"
    questions = judge.questions(NIH)
    assert questions == judges["chexnet"].questions(NIH)
    said, wanted = ([reply.logit for reply in each.ask(FILMS[0], questions)] for each in (judge, judges["chexnet"]))
    assert said == pytest.approx(wanted, abs=1e-3)


# ---- the command


def test_a_checkpoint_is_run_by_the_command_and_its_card_is_sealed(capsys, files, tmp_path):
    """`bpals judge run densenet121:FILE@SHA256`: every pair is answered, and a second run asks nothing again."""
    small = datasets.write(tmp_path, 4)
    found = hashlib.sha256(files["densenet121"].read_bytes()).hexdigest()
    words = ["judge", "run", f"densenet121:{files['densenet121']}@{found}", *small.words, "--workspace",
             str(tmp_path / "audit"), "--trained-on-target", "yes", "--device", "cpu", "--json"]  # fmt: skip
    assert obey(words) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["judge"], done["state"], done["films"]) == ("densenet121", "done", 4)
    assert done["counts"]["answered"] == 12
    assert done["card"]["revision"] == f"sha256:{found}"
    assert done["card"]["trained_on_target"] == "yes"
    assert obey(words) == 0
    assert json.loads(capsys.readouterr().out)["tally"] is None


def test_a_recipe_is_given_by_the_command(capsys, recipe, tmp_path):
    """`bpals judge run onnx:FILE --recipe FILE.toml`: what has no output is unsupported, and counted."""
    small = datasets.write(tmp_path, 4)
    words = ["judge", "run", f"onnx:{write_onnx(tmp_path / 'w.onnx')}", "--recipe", str(recipe), *small.words,
             "--workspace", str(tmp_path / "audit")]  # fmt: skip
    assert obey(words) == 0
    assert mentions(capsys.readouterr().out, "answered 4", "unsupported 8", "failed 0")
    assert obey(["judge", "card", "w", "--workspace", str(tmp_path / "audit")]) == 0
    shown = {line[:18].strip(): line for line in capsys.readouterr().out.splitlines()}
    inside, _, outside = shown["preparation"].partition("input (")[2].partition(")")
    assert ("side px 32" in inside, "side px 512" in outside) == (True, True), "which side is whose is not said"
    assert shown["cost"].split()[:3] == ["cost", "seconds", "per"], "a classifier sends no request and reads no token"


def test_the_kinds_are_listed_and_strange_options_refused(capsys, files, tmp_path):
    """`bpals judge list` names them; a pack means nothing to a classifier."""
    assert obey(["judge", "list", "--workspace", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert all(f"{kind}:FILE[@SHA256]" in listed for kind in (*KINDS, "onnx"))
    assert obey(["judge", "run", f"xrv:{files['xrv']}", "--pack", "chest"]) == 2
    assert mentions(capsys.readouterr().err, "--pack", "xrv")


XRV_LABELS = (
    "Atelectasis", "Consolidation", "Infiltration", "Pneumothorax", "Edema", "Emphysema", "Fibrosis", "Effusion",
    "Pneumonia", "Pleural_Thickening", "Cardiomegaly", "Nodule", "Mass", "Hernia", "Lung Lesion", "Fracture",
    "Lung Opacity", "Enlarged Cardiomediastinum",
)  # fmt: skip
PUBLISHED = {
    "nih-pc-chex-mimic_ch-google-openi-kaggle-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-all",
    "nih-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-nih",
    "pc-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-pc",
    "chex-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-chex",
    "kaggle-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-rsna",
    "mimic_nb-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-mimic_nb",
    "mimic_ch-densenet121-d121-tw-lr001-rot45-tr15-sc15-seed0-best.pt": "xrv-mimic_ch",
    "pc-nih-rsna-siim-vin-resnet50-test512-e400-state.pt": "xrv-resnet50-all",
    "densenet121-res224-all.pt": "xrv-all",
    "densenet121-res224-nih.safetensors": "xrv-nih",
    "resnet50-res512-all.pt": "xrv-resnet50-all",
    "weights.pt": "xrv",
    "pc-chex.pt": "xrv",
}


def test_the_recipe_of_xrv_by_value():
    """One channel from -1024 to 1024, the middle square at 224 px, 18 targets, the raw sigmoid."""
    recipe = find_recipe("xrv", "weights.pt")
    assert recipe.labels == XRV_LABELS
    assert (recipe.architecture, recipe.channels, recipe.output) == ("densenet121", 1, "sigmoid")
    assert [(grey - recipe.mean[0]) / recipe.std[0] for grey in (0, 0.5, 1)] == [-1024, 0, 1024]
    assert (recipe.framing, recipe.side_px) == ("crop, resize", 224)
    assert recipe.trained_on_target == "unknown"


@pytest.mark.parametrize(
    ("kind", "architecture", "resize_px", "trained"),
    [
        ("chexnet", "densenet121", 256, "yes"),
        ("densenet121", "densenet121", 224, "unknown"),
        ("resnet50", "resnet50", 224, "unknown"),
    ],
)
def test_the_other_recipes_by_value(kind, architecture, resize_px, trained):
    """Three channels scaled as ImageNet's, the middle 224 px, NIH's 14 findings in NIH's order."""
    recipe = find_recipe(kind, "model.pth.tar")
    assert recipe.labels == NIH.findings
    assert (recipe.architecture, recipe.channels, recipe.output) == (architecture, 3, "sigmoid")
    assert recipe.mean == (0.485, 0.456, 0.406)
    assert recipe.std == (0.229, 0.224, 0.225)
    assert (recipe.framing, recipe.resize_px, recipe.side_px) == ("resize, crop", resize_px, 224)
    assert recipe.trained_on_target == trained
    assert recipe.evidence


@pytest.mark.parametrize(("file", "name"), PUBLISHED.items())
def test_published_weights_are_known_by_the_words_of_their_names(file, name):
    """Trained on NIH's labels exactly where the name says nih or all; nothing is read into another name."""
    recipe = find_recipe("xrv", file)
    assert recipe.name == name
    assert recipe.trained_on_target == ("yes" if name in {"xrv-all", "xrv-nih", "xrv-resnet50-all"} else "unknown")
    assert ("NIH" in recipe.evidence) == (name in {"xrv-all", "xrv-nih", "xrv-resnet50-all", "xrv-rsna"})


def test_the_page_about_scale_says_what_the_cards_say():
    """Each of the published weights stands in one row of the table, with the word that its card has."""
    page = (shape.ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    table = page.partition("|judge|trained on|`trained_on_target` for NIH|")[2].partition("\n\n")[0]
    for file, name in PUBLISHED.items():
        recipe, weights = find_recipe("xrv", file), name.removeprefix("xrv-")
        cells = [row.strip("|").split("|") for row in table.splitlines()]
        rows = [row for row in cells if f"`{weights}`" in row[0]]
        if weights != "xrv":
            assert [row[2].split()[0] for row in rows] == [recipe.trained_on_target], name


def test_a_name_that_says_nih_among_others_is_believed():
    """Weights of one's own that were trained on NIH and PadChest are not independent of NIH's labels either."""
    recipe = find_recipe("xrv", "nih-pc-mine.pt")
    assert (recipe.name, recipe.trained_on_target) == ("xrv", "yes")
    assert mentions(recipe.evidence, "nih-pc-mine.pt")


def test_an_output_that_was_never_trained_has_no_label():
    """CheXpert has no hernia: whatever that output gives is no evidence."""
    recipe = find_recipe("xrv", "weights.pt", "chex")
    assert (recipe.name, len(recipe.labels)) == ("xrv-chex", 18)
    assert recipe.labels[XRV_LABELS.index("Hernia")] == ""
    meant = recipe.outputs(NIH)
    assert sorted(meant) == ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Pneumonia",
                             "Pneumothorax"]  # fmt: skip
    assert find_recipe("xrv", "x.pt", "resnet50-all").side_px == 512


def test_labels_are_matched_to_the_dataset_by_its_own_words():
    """Fracture is no finding of NIH's and is left out; another dataset says Pleural effusion for Effusion."""
    assert list(find_recipe("xrv", "w.pt").outputs(NIH)) == [label for label in XRV_LABELS if label in NIH.findings]
    other = Vocabulary(name="other", findings=("Pleural effusion", "lung opacity", "Pacemaker"))
    assert find_recipe("xrv", "w.pt").outputs(other) == {"Pleural effusion": "Effusion", "lung opacity": "Lung Opacity"}


def test_what_a_whole_module_calls_its_outputs_comes_first():
    """TorchXRayVision keeps the names in the model."""
    attributes = {"pathologies": ["", *XRV_LABELS[1:]]}
    assert find_recipe("xrv", "w.pt", attributes=attributes).labels == ("", *XRV_LABELS[1:])


def own(folder, text):
    """A recipe of the user's."""
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_recipe_of_your_own_overrides_what_it_names(tmp_path):
    """The rest stays as the kind has it."""
    text = 'labels = ["Effusion", ""]\noutput = "softmax"\nframing = "stretch"\nside_px = 320\n'
    recipe = find_recipe("resnet50", "w.pt", own(tmp_path, text))
    assert (recipe.name, recipe.labels, recipe.output) == ("w", ("Effusion", ""), "softmax")
    assert find_recipe("resnet50", "w.pt", own(tmp_path, f'name = "lungs"\n{text}')).name == "lungs"
    assert (recipe.framing, recipe.side_px, recipe.mean) == ("stretch", 320, (0.485, 0.456, 0.406))


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("labels = [", UsageError, "is no TOML"),
        ('label = ["Effusion"]', UnknownName, "no key of a recipe is called 'label'. Did you mean 'labels'"),
        ('labels = "Effusion"', UsageError, "labels = 'Effusion' cannot be"),
        ("labels = [1]", UsageError, "labels are texts"),
        ("channels = true", UsageError, "channels = True cannot be"),
        ("channels = 2", UsageError, "2 channels need"),
        ("mean = [0.5]", UsageError, "3 channels need"),
        ("std = [0.1, 0.1, 0]", UsageError, "no std is 0"),
        ('mean = ["a", "b", "c"]', UsageError, "are numbers"),
        ("side_px = 8", UsageError, "side_px is 32 to 2048"),
        ("side_px = 512", UsageError, "resize_px is not less"),
        ('output = "logit"', UnknownName, "no output is called 'logit'"),
        ('framing = "squash"', UnknownName, "no framing is called"),
        ('trained_on_target = "maybe"\nevidence = "?"', UnknownName, "no trained_on_target is called"),
        ('trained_on_target = "no"', JudgeError, "not how you know"),
    ],
)
def test_a_recipe_with_a_mistake_is_refused_by_the_key(tmp_path, text, error, why):
    """In one line that names the file or what is known."""
    with pytest.raises(error, match=why):
        find_recipe("chexnet", "w.pt", own(tmp_path, text))


def test_a_recipe_that_nobody_knows_is_answered_with_the_nearest():
    """A word without a suffix is meant as a name."""
    with pytest.raises(UnknownName, match=r"recipe .*'nhi'.*'nih'"):
        find_recipe("xrv", "w.pt", "nhi")


def test_two_labels_of_one_finding_are_refused(tmp_path):
    """Which of them is meant cannot be guessed."""
    recipe = find_recipe("resnet50", "w.pt", own(tmp_path, 'labels = ["Effusion", "Pleural effusion"]'))
    with pytest.raises(UsageError, match="'Effusion' and 'Pleural effusion'"):
        recipe.outputs(NIH)


def test_an_onnx_file_needs_a_recipe(tmp_path):
    """Nothing in it says what its outputs mean."""
    with pytest.raises(UsageError, match="outputs mean"):
        find_recipe("onnx", "w.onnx")
    with pytest.raises(UsageError, match="cannot be read"):
        find_recipe("onnx", "w.onnx", tmp_path / "none.toml")


SIZES = [(300, 300), (512, 421), (401, 512), (256, 256), (100, 64)]


def image(width, height):
    """A grey image of noise on a slope."""
    dice = np.random.default_rng(width * 1000 + height)
    slope = np.linspace(0, 200, width)[None] + np.linspace(0, 55, height)[:, None]
    return Image.fromarray(np.clip(slope + dice.normal(0, 20, (height, width)), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["chexnet", "densenet121", "resnet50"])
def test_what_torchvision_does_is_done(kind, size):
    """Resize, CenterCrop, ToTensor, Normalize on three equal channels, to a millionth."""
    recipe, transforms = find_recipe(kind, "w.pt"), import_torchvision().transforms
    steps = transforms.Compose(
        [
            transforms.Resize(256 if kind == "chexnet" else 224),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    wanted = steps(image(*size).convert("RGB")).numpy()
    shown = show(image(*size), recipe)
    assert (shown.shape, shown.dtype) == ((3, 224, 224), np.float32)
    assert np.abs(shown - wanted).max() < 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_xrv_sees_the_middle_square_from_minus_to_plus_1024(size):
    """Its own centre crop and its own scale, and then the resize."""
    width, height = size
    square = min(size)
    grey = np.asarray(image(*size), dtype=np.float32)
    top, left = height // 2 - square // 2, width // 2 - square // 2
    scaled = (2 * grey[top : top + square, left : left + square] / 255 - 1) * 1024
    wanted = np.asarray(Image.fromarray(scaled).resize((224, 224), Image.Resampling.BILINEAR))
    shown = show(image(*size), find_recipe("xrv", "w.pt"))
    assert shown.shape == (1, 224, 224)
    assert np.abs(shown[0] - wanted).max() < 1e-3


def test_black_and_white_by_value():
    """The ends of the scale: -1024 and 1024; and ImageNet's for three channels."""
    black, white = Image.new("L", (64, 64), 0), Image.new("L", (64, 64), 255)
    xrv, chexnet = find_recipe("xrv", "w.pt"), find_recipe("chexnet", "w.pt")
    assert np.unique(show(black, xrv)).tolist() == [-1024]
    assert np.unique(show(white, xrv)).tolist() == [1024]
    assert show(black, chexnet)[:, 0, 0] == pytest.approx([-2.117904, -2.035714, -1.804444], abs=1e-6)
    assert show(white, chexnet)[:, 0, 0] == pytest.approx([2.248908, 2.428571, 2.640000], abs=1e-6)


def test_a_film_may_be_stretched(tmp_path):
    """Where its recipe says so, nothing is cut off."""
    (tmp_path / "r.toml").write_text('framing = "stretch"\nside_px = 64\n')
    recipe = find_recipe("densenet121", "w.pt", tmp_path / "r.toml")
    wide = Image.new("L", (300, 100), 0)
    wide.paste(255, (0, 0, 30, 100))
    shown = show(wide, recipe)[0]
    assert shown.shape == (64, 64)
    assert shown[32, 0] > 2 > shown[32, 63]


SHOWN = np.random.default_rng(0).normal(size=(1, 3, 64, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def densenet():
    """A DenseNet-121 with random weights, and what it says."""
    module = network("densenet121", seed=1)
    return numbers(module), said(module)


@pytest.fixture(scope="module")
def resnet():
    """A ResNet-50 with random weights, and what it says."""
    module = network("resnet50", seed=2)
    return numbers(module), said(module)


def said(module):
    """What torch itself says of a film."""
    with torch.inference_mode():
        return module(torch.from_numpy(SHOWN)).numpy()


def opened(arrays, architecture="densenet121", *, channels=3, outputs=14):
    """The network of some weights."""
    weights = Weights(path=Path("w.pt"), sha256="", form="", arrays=arrays)
    return open_network(weights, architecture, channels=channels, outputs=outputs, device="cpu")


def under(prefix, arrays):
    """The same weights under a wrapper's name."""
    return {prefix + name: array for name, array in arrays.items()}


RENAMED = {
    "as torchvision has them": lambda arrays: arrays,
    "DataParallel": lambda arrays: under("module.", arrays),
    "compiled": lambda arrays: under("_orig_mod.module.", arrays),
    "CheXNet of 2017": as_2017,
    "beside a loss": lambda arrays: under("net.", arrays) | {"loss.pos_weight": np.ones(14)},
    "with operating points": lambda arrays: arrays | {"op_threshs": np.ones(14)},
    "without counters": lambda arrays: {k: v for k, v in arrays.items() if not k.endswith("num_batches_tracked")},
    "in doubles": lambda arrays: {name: array.astype(np.float64) for name, array in arrays.items()},
}


@pytest.mark.parametrize("rename", RENAMED.values(), ids=RENAMED)
def test_a_densenet_is_the_same_under_every_name(densenet, rename):
    """It says what torch's own network says, to the last bit."""
    arrays, wanted = densenet
    # Not to the last bit: some processors add up in another order from one call to the next.
    assert opened(rename(arrays)).run(SHOWN) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("head", ["fc.", "fc.0.", "fc.1."])
def test_a_resnet_too_with_its_head_in_a_sequence(resnet, head):
    """A Dropout before the last layer or a Sigmoid after it has no weights."""
    arrays, wanted = resnet
    renamed = {name.replace("fc.", head): array for name, array in arrays.items()}
    assert opened(under("module.", renamed), "resnet50").run(SHOWN) == pytest.approx(wanted, abs=1e-5)


def without(arrays, name):
    """All weights but one."""
    return {each: array for each, array in arrays.items() if each != name}


MISFITS = {
    "missing": (
        lambda arrays: without(arrays, "features.norm5.weight"),
        r"features\.norm5\.weight \(1024,\) is missing; it is no whole densenet121",
    ),
    "missing head": (
        lambda arrays: without(arrays, "classifier.bias"),
        r"classifier\.bias \(14,\) is missing",
    ),
    "outputs": (
        lambda arrays: arrays | {"classifier.weight": np.zeros((5, 1024)), "classifier.bias": np.zeros(5)},
        r"has the shape \(5, 1024\): 5 outputs, where 14 labels are named. .*--recipe",
    ),
    "channels": (
        lambda arrays: arrays | {"features.conv0.weight": np.zeros((64, 1, 7, 7))},
        r"features\.conv0\.weight has the shape \(64, 1, 7, 7\), and \(64, 3, 7, 7\) is wanted",
    ),
    "a layer more": (
        lambda arrays: arrays | {"features.norm6.weight": np.zeros(3)},
        r"features\.norm6\.weight \(3,\) has no place in a densenet121",
    ),
    "a head of two layers": (
        lambda arrays: (
            without(arrays, "classifier.weight")
            | {"classifier.0.weight": np.zeros((9, 1024)), "classifier.2.weight": np.zeros((14, 9))}
        ),
        r"classifier\.weight \(14, 1024\) is missing",
    ),
    "no numbers": (
        lambda arrays: arrays | {"classifier.bias": np.full(14, np.nan)},
        r"classifier\.bias holds values that are no numbers",
    ),
    "twice": (
        lambda arrays: under("model.", arrays) | under("ema.", arrays),
        r"holds the network twice, under 'model\.' and 'ema\.'",
    ),
    "nothing": (lambda _: {}, r"holds no densenet121: .* is missing\. Its names: none"),
}


@pytest.mark.parametrize(("change", "why"), MISFITS.values(), ids=MISFITS)
def test_weights_that_do_not_fit_are_refused_by_name_and_shape(densenet, change, why):
    """Nothing is ever filled up with chance."""
    with pytest.raises(JudgeError, match=why):
        opened(change(densenet[0]))


def test_the_other_network_is_named_where_it_is_that(resnet):
    """A ResNet under densenet121: is answered with what to type."""
    with pytest.raises(JudgeError, match=r"no densenet121.*resnet50:FILE"):
        opened(resnet[0])
