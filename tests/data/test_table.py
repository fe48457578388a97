"""CSV files as people write them: one label or several, unknown ones, splits, missing files, mistakes by line."""

import numpy as np
import pytest
from PIL import Image

from vitreous.data.base import class_vectors
from vitreous.data.table import open_table
from vitreous.samples import Classes, MultiLabels

NAN = np.nan


@pytest.fixture
def write(tmp_path):
    for index in range(4):
        Image.new("RGB", (5, 5)).save(tmp_path / f"{index}.png")

    def write(text, encoding="utf-8"):
        (tmp_path / "list.csv").write_text(text, encoding=encoding)
        return tmp_path / "list.csv"

    return write


def rows(text):
    return "".join(f"{line}\n" for line in text.split())


SINGLE, MULTI = Classes, MultiLabels
TABLES = [
    ("path,label 0.png,dog 1.png,cat", SINGLE, ("cat", "dog"), [[0, 1], [1, 0]]),
    ("Filename;Label 0.png;dog 1.png;cat", SINGLE, ("cat", "dog"), [[0, 1], [1, 0]]),
    ("file,label 0.png,10 1.png,9", SINGLE, ("9", "10"), [[0, 1], [1, 0]]),
    ("image,labels 0.png,dog;cat 1.png, 2.png,dog", MULTI, ("cat", "dog"), [[1, 1], [0, 0], [0, 1]]),
    ("path,age,ill,fit 0.png,3,1.0,0 1.png,4,-1,NaN 2.png,5,,1", MULTI, ("ill", "fit"), [[1, 0], [NAN, NAN], [NAN, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "target", "classes", "targets"), TABLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_labels(write, text, target, classes, targets, encoding):
    data = open_table(write(rows(text), encoding)).train
    assert (data.target, data.classes) == (target, classes)
    assert type(data.targets(np.arange(1))) is target
    assert np.array_equal(class_vectors(data, np.arange(len(data))), targets, equal_nan=True)
    assert data.image(0).size == (5, 5)


def test_columns_that_are_no_labels_are_named(write):
    assert open_table(write(rows("path,age,sick 0.png,33,1 1.png,44,0"))).notes == (
        "these columns are not labels: age",
    )


def test_splits(write):
    splits = open_table(write(rows("path,label,split 0.png,a,train 1.png,b,Train 2.png,a,val 3.png,b,test")))
    assert {name: len(part) for name, part in splits.parts().items()} == {"train": 2, "valid": 1, "test": 1}
    assert splits.test.location(0).endswith("3.png")
    assert splits.valid.classes == ("a", "b")


def test_missing_files_are_counted_and_three_of_them_named(write):
    splits = open_table(write(rows("path,label 0.png,a w.png,a 1.png,b x.png,c y.png,a z.png,b")))
    assert splits.notes == ("4 of 6 files are missing, their rows left out: w.png, x.png, y.png and 1 more",)
    assert splits.train.classes == ("a", "b")
    assert class_vectors(splits.train, np.arange(2)).tolist() == [[1, 0], [0, 1]]


ERRORS = [
    ("", "is empty"),
    ("path,label", "has a header but no rows"),
    ("photo,label 0.png,a", "has no path column: name it path, image, file or filename .*photo, label"),
    ("path,kind 0.png,a", "has no labels: expected a column label"),
    ("path,label x.png,a y.png,b", "none of the 2 files listed .* e.g. .*x.png"),
    ("path,label 0.png,a 1.png,a", "only one class, 'a'"),
    ("path,label 0.png,a 1.png,", "line 3: the label is empty"),
    ("path,label 0.png,a 1.png", "line 3: the header has 2 cells, this line 1"),
    ("path,path,label 0.png,1.png,a", "has duplicate column names: path"),
    ("path,x,y 0.png,1,0 1.png,0,1 2.png,0,0 3.png,1,2", "line 5: '2' in column 'y' is neither 1, 0 nor unknown"),
    ("path,labels 0.png, 1.png,", "holds no labels"),
    ("path,label,split 0.png,a,train 1.png,b,dev", "line 3: 'dev' is not a split"),
    ("path,label,split 0.png,a,val 1.png,b,val", "no row .* is train"),
    ("path,label,split 0.png,a,train 1.png,b,train 2.png,c,val", "of the valid split are missing from train: c"),
    ('path,label 0.png,"a', "not a valid CSV"),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_mistakes_are_named(write, text, message):
    with pytest.raises(ValueError, match=message):
        open_table(write(rows(text)))


def test_other_encodings_are_refused(write):
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        open_table(write("path,label\n0.png,bär\n", "latin1"))
