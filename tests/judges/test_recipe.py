"""What each kind of checkpoint is shown and what its outputs mean is written down, and read as it is written."""

import pytest

import shape
from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.findings import NIH, Vocabulary
from bpals.judges.checkpoint import find_recipe
from world.words import mentions

XRV = (
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
    assert recipe.labels == XRV
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
    assert recipe.labels[XRV.index("Hernia")] == ""
    meant = recipe.outputs(NIH)
    assert sorted(meant) == ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Pneumonia",
                             "Pneumothorax"]  # fmt: skip
    assert find_recipe("xrv", "x.pt", "resnet50-all").side_px == 512


def test_labels_are_matched_to_the_dataset_by_its_own_words():
    """Fracture is no finding of NIH's and is left out; another dataset says Pleural effusion for Effusion."""
    assert list(find_recipe("xrv", "w.pt").outputs(NIH)) == [label for label in XRV if label in NIH.findings]
    other = Vocabulary(name="other", findings=("Pleural effusion", "lung opacity", "Pacemaker"))
    assert find_recipe("xrv", "w.pt").outputs(other) == {"Pleural effusion": "Effusion", "lung opacity": "Lung Opacity"}


def test_what_a_whole_module_calls_its_outputs_comes_first():
    """TorchXRayVision keeps the names in the model."""
    said = {"pathologies": ["", *XRV[1:]]}
    assert find_recipe("xrv", "w.pt", said=said).labels == ("", *XRV[1:])


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
