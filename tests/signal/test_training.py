"""What an audit gives a model: targets, masks and weights, in the convention of TorchXRayVision."""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest

import shape
from bpals.errors import UnknownName, UsageError
from bpals.signal.training import DISTRUSTED, mask, targets, weights, with_targets
from bpals.types import FLAG, SAYS, VERDICT

FINDINGS = ("Mass", "Pleural_Thickening")
ROWS = [
    ("b.png", "Mass", "present", 0.9, "trusted"),
    ("b.png", "Pleural_Thickening", "absent", 0.02, "likely_mislabelled"),
    ("a.png", "Mass", "uncertain", None, "unjudged"),
    ("a.png", "Pleural_Thickening", "absent", 0.4, "suspect"),
    ("c.png", "Mass", "absent", 0.3, "hard"),
]
COLUMNS = {"image_id": pl.String, "finding": pl.Enum(FINDINGS), "says": SAYS, "trust": pl.Float64, "flag": FLAG}


@pytest.fixture
def signal():
    """Three films and two findings; the last film is silent about one."""
    return pl.DataFrame(ROWS, schema=COLUMNS, orient="row")


def test_a_weight_is_the_trust(signal):
    """One row a film in the order of the signal, one column a finding; no claim or no trust weighs nothing."""
    assert weights(signal, balance=False).to_dict(as_series=False) == {
        "image_id": ["b.png", "a.png", "c.png"],
        "Mass": [0.9, 0.0, 0.3],
        "Pleural_Thickening": [0.02, 0.4, 0.0],
    }


def test_a_floor_lifts_the_smallest_weights_and_nothing_that_has_none(signal):
    """What nobody could trust or distrust stays at zero."""
    lifted = weights(signal, floor=0.35, balance=False)
    assert lifted["Mass"].to_list() == [0.9, 0.0, 0.35]
    assert lifted["Pleural_Thickening"].to_list() == [0.35, 0.4, 0.0]


@pytest.mark.parametrize("floor", [-0.1, 1.1, float("nan")])
def test_a_floor_outside_the_unit_is_refused(signal, floor):
    """A weight lies between 0 and 1."""
    with pytest.raises(UsageError, match="a weight lies between 0 and 1"):
        weights(signal, floor=floor)


def test_masked_labels_are_one_zero_or_nan(signal):
    """NaN is `no information`: distrusted, uncertain or not claimed; float32, a row a film."""
    labels = mask(signal, balance=False)
    assert labels.image_ids == ["b.png", "a.png", "c.png"]
    assert labels.findings == list(FINDINGS)
    assert labels.values.dtype == np.float32
    assert labels.values.tolist() == [
        [1.0, pytest.approx(np.nan, nan_ok=True)],
        [pytest.approx(np.nan, nan_ok=True)] * 2,
        [0.0, pytest.approx(np.nan, nan_ok=True)],
    ]


def test_the_flags_to_mask_are_chosen(signal):
    """None: every certain claim stays; `hard` too: fewer do."""
    assert np.isnan(mask(signal, flags=()).values).sum() == 2
    assert np.isnan(mask(signal, balance=False).values).sum() == 4
    assert np.isnan(mask(signal, flags=[*DISTRUSTED, "hard"], balance=False).values).sum() == 5


def test_an_unknown_flag_is_answered_with_the_nearest(signal):
    """And nothing is masked by a word that nobody knows."""
    with pytest.raises(UnknownName, match="Did you mean 'suspect'"):
        mask(signal, flags=["suspekt"])


def test_pathologies_pick_and_order_the_columns(signal):
    """As TorchXRayVision's relabel_dataset: what the signal does not have is all NaN, spelled as it was asked for."""
    labels = mask(signal, flags=(), pathologies=["Hernia", "pleural thickening", "Mass"])
    assert labels.findings == ["Hernia", "pleural thickening", "Mass"]
    assert np.isnan(labels.values[:, 0]).all()
    assert labels.values[:2, 1].tolist() == [0.0, 0.0]
    assert labels.values[[0, 2], 2].tolist() == [1.0, 0.0]


def test_a_pathology_asked_for_twice_is_refused(signal):
    """Two columns of one name would be one."""
    with pytest.raises(UsageError, match="Mass is asked for twice"):
        mask(signal, pathologies=["Mass", "Mass"])


def test_a_signal_without_a_vocabulary_is_served(signal):
    """Findings as mere words, say from a CSV: columns in the order of their first appearance."""
    words = signal.with_columns(pl.col("finding").cast(pl.String))
    assert weights(words).equals(weights(signal))
    assert mask(words).findings == mask(signal).findings


def test_an_empty_signal_has_no_rows(signal):
    """And all its columns."""
    assert weights(signal.clear()).columns == ["image_id", *FINDINGS]
    assert mask(signal.clear()).values.shape == (0, 2)
    assert targets(signal.clear().with_columns(p_present=pl.lit(None, pl.Float64))).values.shape == (0, 2)


# Balance: 100 presences of which 50 are flagged, 1,000 absences of which 20 are.


def many(flagged_present=50, flagged_absent=20):
    """One finding; the flagged labels are the least trusted ones."""
    rows = [(f"p{i:03}", "Mass", "present", (i + 1) / 400, "suspect" if i < flagged_present else "hard")
            for i in range(100)]  # fmt: skip
    rows += [(f"a{i:04}", "Mass", "absent", 0.7 + i / 4000, "suspect" if i < flagged_absent else "trusted")
             for i in range(1000)]  # fmt: skip
    return pl.DataFrame(rows, schema={**COLUMNS, "finding": pl.Enum(["Mass"])}, orient="row")


def opened(labels):
    """The images whose label is open."""
    return [each for each, value in zip(labels.image_ids, labels.values[:, 0], strict=True) if np.isnan(value)]


def test_a_mask_keeps_the_balance_and_drops_a_fifth_at_most():
    """Both classes lose a fifth, the least trusted first; the ratio of 10 stays, and the summary says so."""
    labels = mask(many())
    assert opened(labels) == [f"p{i:03}" for i in range(20)] + [f"a{i:04}" for i in range(200)]
    present, absent = labels.summary().rows(named=True)
    assert present == {
        "finding": "Mass", "says": "present", "labels": 100, "rejected": 0, "flagged": 50, "kept_by_cap": 30,
        "open_for_balance": 0, "open": 20, "ratio_before": 10.0, "ratio_after": 10.0,
    }  # fmt: skip
    assert (absent["flagged"], absent["kept_by_cap"], absent["open_for_balance"], absent["open"]) == (20, 0, 180, 200)
    assert repr(labels) == "<Labels of 1,100 images x 1 findings: 20.0% of 1,100 left open>"


def test_without_balance_every_flagged_label_is_open_and_no_other():
    """As before, and the summary says what that does: 10 negatives per positive become 19.6."""
    labels = mask(many(), balance=False)
    assert len(opened(labels)) == 70
    assert labels.summary()["ratio_after"].to_list() == [980 / 50] * 2


def test_a_cap_alone_keeps_no_balance():
    """Each class loses what is flagged, up to the cap."""
    capped = mask(many(), balance=False, cap=0.1).summary()
    assert capped["open"].to_list() == [10, 20]
    assert mask(many(), cap=0.0).summary()["open"].to_list() == [0, 0]
    assert mask(many(), cap=1.0).summary()["open"].to_list() == [50, 500]


@pytest.mark.parametrize("function", [mask, weights])
@pytest.mark.parametrize("cap", [-0.1, 1.1, float("nan")])
def test_a_cap_is_a_share(function, cap):
    """Nothing else is."""
    with pytest.raises(UsageError, match="cap"):
        function(many(), cap=cap)


def test_weights_keep_the_balance_and_most_of_the_labels():
    """Mean 1 in each class, more for the more trusted, and at most a fifth of the labels is lost by their spread."""
    made = weights(many())
    report = made.summary()
    assert report["ratio_before"].to_list() == [10.0, 10.0]
    assert report["ratio_after"].to_list() == pytest.approx([10.0, 10.0])
    assert report["weight"].to_list() == pytest.approx([100, 1000])
    assert report["effective"].to_list()[0] == pytest.approx(80)
    assert report["effective"].to_list()[1] > 990
    assert made["Mass"].head(100).is_sorted()
    assert "1,100 images x 1 findings" in repr(made)
    assert isinstance(made, pl.DataFrame)
    assert "Mass" in repr(made.head(2))
    with pytest.raises(UsageError, match="summary"):
        made.head(2).summary()


def test_old_weights_say_what_they_do_to_the_balance():
    """10 negatives per positive become 65.4 where presences have a low trust."""
    report = weights(many(), balance=False).summary()
    assert report["ratio_after"].to_list() == pytest.approx([824.875 / 12.625] * 2)
    assert weights(many(), cap=1.0).summary()["effective"][0] == pytest.approx(report["effective"][0])


# What people settled.


def read(signal):
    """The signal with the columns of settled truth: one label rejected, one confirmed."""
    return signal.with_columns(
        p_present=pl.Series([0.9, 0.98, 0.5, None, 0.7]),
        verdict=pl.Series(["absent", "absent", "present", "present", "uncertain"], dtype=VERDICT),
        verdict_by=pl.Series(["adjudicated", "readers", "readers", None, "readers"]),
    )


def test_targets_are_verdicts_then_probabilities_then_nothing(signal):
    """A verdict that nobody stands for, or that is open, is none; what nobody knows is NaN."""
    made = targets(read(signal))
    nothing = pytest.approx(np.nan, nan_ok=True)
    assert made.values.tolist() == [[0.0, 0.0], [1.0, nothing], [pytest.approx(0.7), nothing]]
    assert made.values.dtype == np.float32
    assert made.summary().rows() == [("Mass", 2, 1, 0, 1, 1.7), ("Pleural_Thickening", 1, 0, 2, 0, 0.0)]
    assert repr(made) == "<Targets of 3 images x 2 findings: 50.0% verdicts, 16.7% estimates, 33.3% missing>"


def test_targets_of_a_signal_without_verdicts_are_p_present(signal):
    """As every signal was before, and as one is whose labels nobody read."""
    made = targets(read(signal).drop("verdict", "verdict_by"))
    assert made.values[0].tolist() == pytest.approx([0.9, 0.98])
    assert made.summary()["verdicts"].to_list() == [0, 0]


def test_the_flags_of_settled_labels_are_enough(signal):
    """A signal that says `rejected` and `confirmed` gives the same targets without the column of verdicts."""
    flags = pl.Series("flag", ["rejected", "confirmed", "unjudged", "suspect", "hard"])
    made = targets(read(signal).drop("verdict", "verdict_by").with_columns(flags))
    assert made.values[0].tolist() == [0.0, 0.0]


def test_a_rejected_label_is_open_and_weighs_nothing_whatever_the_cap(signal):
    """And a confirmed one stays and weighs most, whatever its flag was."""
    labels = mask(read(signal), cap=0.0)
    assert np.isnan(labels.values[0, 0])
    assert labels.values[0, 1] == 0.0
    assert labels.summary()["rejected"].to_list() == [1, 0, 0]
    assert np.isnan(mask(read(signal), flags=["suspect"], balance=False).values[0, 0])
    made = weights(read(signal), floor=0.5)
    assert made["Mass"][0] == 0.0
    assert made["Pleural_Thickening"][0] > made["Pleural_Thickening"][1]
    assert weights(read(signal), balance=False)["Pleural_Thickening"][0] == 1.0


def test_targets_as_other_peoples_frames(signal):
    """Polars with null, pandas and torch with NaN; torch is a copy."""
    made = targets(read(signal))
    assert made.to_polars().columns == ["image_id", *FINDINGS]
    assert made.to_polars()["Pleural_Thickening"].to_list() == [0.0, None, None]
    pandas = pytest.importorskip("pandas", reason="pip install pandas pyarrow")
    pytest.importorskip("pyarrow", reason="pip install pandas pyarrow")
    frame = made.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.loc["a.png", "Mass"] == 1.0
    torch = pytest.importorskip("torch", reason="torch is in the extra bpals[torch]")
    tensor = made.to_torch()
    assert tensor.dtype == torch.float32
    tensor[0, 0] = 7
    assert made.values[0, 0] == 0.0


def test_nothing_heavy_is_imported_for_targets():
    """Both torch and pandas are imported where they are asked for."""
    code = "import sys, bpals; bpals.targets; assert not {'torch', 'pandas'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(shape.SRC)}, check=True)


@pytest.mark.parametrize("function", [mask, weights, targets])
def test_a_table_that_is_no_signal_is_refused(signal, function):
    """A file name, a table without a column, a pair in two rows."""
    whole = read(signal)
    with pytest.raises(UsageError, match="load_signal"):
        function("audit")
    with pytest.raises(UsageError, match="'finding'"):
        function(whole.drop("finding"))
    with pytest.raises(UsageError, match=r"b\.png, Mass stands in 2 rows"):
        function(pl.concat([whole, whole.head(1)]))


def test_a_probability_that_is_none_is_refused(signal):
    """NaN and 1.2 are no targets."""
    for value in (float("nan"), 1.2):
        with pytest.raises(UsageError, match="p_present"):
            targets(read(signal).drop("verdict").with_columns(p_present=pl.lit(value)))


# A dataset that applies them.


class Films:
    """A dataset of TorchXRayVision's shape, without it."""

    def __init__(self, names=("x/b.png", "x/c.png", "x/new.png")):
        """List the films."""
        pandas = pytest.importorskip("pandas", reason="pip install pandas")
        self.csv = pandas.DataFrame({"Age": range(len(names)), "Path": names})
        self.pathologies = ["Pleural Thickening", "Mass", "Hernia"]
        self.labels = np.ones((len(names), 3), dtype=np.float32)
        self.views = ["PA"]

    def __len__(self):
        return len(self.csv)

    def __getitem__(self, index):
        return {"idx": index, "img": np.zeros((1, 2, 2)), "lab": self.labels[index]}


def test_items_carry_the_targets(signal):
    """In the dataset's own order of findings, by whatever column names the files; NaN for what nobody audited."""
    films = Films()
    made = with_targets(films, targets(read(signal)))
    nan = np.nan
    np.testing.assert_array_equal(made.labels, np.float32([[0, 0, nan], [nan, 0.7, nan], [nan, nan, nan]]))
    item = made[1]
    assert sorted(item) == ["idx", "img", "lab"]
    np.testing.assert_array_equal(item["lab"], made.labels[1])
    assert (len(made), made.unknown, made.views, made.pathologies) == (3, 1, ["PA"], films.pathologies)
    assert films[1]["lab"].tolist() == [1, 1, 1]
    assert repr(made) == "<Films with targets: 3 items, 33.3% of the labels known>"


def test_a_wrapped_dataset_can_be_sent_to_a_worker(signal):
    """A DataLoader pickles it."""
    made = pickle.loads(pickle.dumps(with_targets(Films(), targets(read(signal)))))  # noqa: S301  ours
    assert made[0]["lab"].tolist()[:2] == [0.0, 0.0]
    assert made.views == ["PA"]


def test_ids_may_be_given(signal):
    """As the name of a column, or one by one."""
    soft = targets(read(signal))
    for ids in ("Path", ["b.png", "c.png", "z.png"]):
        assert with_targets(Films(), soft, image_ids=ids).unknown == 1


@pytest.mark.parametrize(
    ("dataset", "ids", "said"),
    [
        (object(), None, "no .csv"),
        (Films, ["b.png"], "1 image ids for 3 items"),
        (Films, "Paht", "Did you mean 'Path'"),
        (lambda: Films(names=("u", "v")), None, "no item is an image of these targets"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(signal, dataset, ids, said):
    """With what is missing, and what to give."""
    films = dataset() if callable(dataset) else dataset
    with pytest.raises(UsageError, match=said):
        with_targets(films, targets(read(signal)), image_ids=ids)


def test_an_item_that_is_no_dict_is_refused(signal):
    """Nothing says which part of a tuple is the label."""
    made = with_targets(Films(), targets(read(signal)))
    made.dataset.__class__ = type("Tuples", (Films,), {"__getitem__": lambda _self, index: (index, 0)})
    with pytest.raises(UsageError, match="tuple"):
        made[0]


XRV = """
import sys, warnings
from bpals.judges.local_model import import_torchvision
import_torchvision()
warnings.simplefilter("ignore")
import torchxrayvision as xrv
import torch
import polars as pl
import numpy as np
import bpals
folder = sys.argv[1]
dataset = xrv.datasets.NIH_Dataset(folder, csvpath=f"{folder}/entries.csv", unique_patients=False)
signal = pl.read_parquet(f"{folder}/signal.parquet")
soft = bpals.with_targets(dataset, bpals.targets(signal))
part = xrv.datasets.SubsetDataset(soft, [2, 0])
loaded = next(iter(torch.utils.data.DataLoader(part, batch_size=2)))
assert loaded["img"].shape == (2, 1, 32, 32)
effusion, hernia = (dataset.pathologies.index(name) for name in ("Effusion", "Hernia"))
assert loaded["lab"].dtype == torch.float32
assert torch.allclose(loaded["lab"][:, effusion], torch.tensor([0.75, 0.25]))
assert loaded["lab"][:, hernia].isnan().all()
assert set(soft.pathologies) == set(dataset.pathologies)
xrv.datasets.relabel_dataset(["Effusion", "Mass"], soft, silent=True)
assert soft[2]["lab"].tolist()[0] == 0.75
"""


def test_torchxrayvisions_own_dataset_takes_targets(tmp_path):
    """Its NIH loader on three drawn films, its subset of it, torch's loader on that, and its relabelling."""
    # Not importorskip: a torchvision without its operators is mended in the other process only.
    if find_spec("torchxrayvision") is None:
        pytest.skip("pip install torchxrayvision")
    image = pytest.importorskip("PIL.Image")
    head = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
    lines = [f"{name}.png,Effusion,0,{number},50,M,PA" for number, name in enumerate("abc", start=1)]
    (tmp_path / "entries.csv").write_text("\n".join([head, *lines]) + "\n")
    for name in "abc":
        image.fromarray(np.full((32, 32), 90, dtype=np.uint8)).save(tmp_path / f"{name}.png")
    pl.DataFrame(
        {"image_id": ["a.png", "b.png", "c.png"], "finding": ["Effusion"] * 3, "says": ["present"] * 3,
         "p_present": [0.25, 0.5, 0.75]}
    ).write_parquet(tmp_path / "signal.parquet")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", XRV, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(shape.SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
