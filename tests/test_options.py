"""Options check their own values, and are written and read back."""

import copy
import inspect
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest

import vitreous as vt
from vitreous.options import Between, Count, Options, Share


@dataclass(frozen=True, kw_only=True)
class Wheel(Options):
    size: int = 1
    kind: Literal["wood", "steel"] = "wood"


@dataclass(frozen=True, kw_only=True)
class Cart(Options):
    wheels: tuple[Wheel, ...] = (Wheel(),)
    loads: tuple[int, ...] = (1, 2)
    front: Wheel = Wheel(size=3)
    drop_rate: float = 0.0
    share: Share = 0.5
    grip: Annotated[float, Between(0, exclude_minimum=True)] = 1.0
    seats: Count = 0
    offset: Annotated[int, Between(-1)] = 0
    angles: tuple[float, float] = (1.0, 2.0)
    horses: int | None = None
    spokes: tuple[int, ...] | None = None
    owner: str = ""

    moved: ClassVar = {"carriage": "front=Wheel(…)"}


def test_written_and_read_back():
    cart = Cart(wheels=[Wheel(size=2), Wheel(kind="steel")], loads=[4], front=Wheel(size=9))
    assert cart.to_json() == {
        "wheels": [{"size": 2, "kind": "wood"}, {"size": 1, "kind": "steel"}],
        "loads": [4],
        "front": {"size": 9, "kind": "wood"},
        "drop_rate": 0.0,
        "share": 0.5,
        "grip": 1.0,
        "seats": 0,
        "offset": 0,
        "angles": [1.0, 2.0],
        "horses": None,
        "spokes": None,
        "owner": "",
    }
    assert Cart(**cart.to_json()) == cart
    assert isinstance(cart.wheels, tuple)


BAD = [
    ({"whels": ()}, "Cart has no option 'whels'; did you mean 'wheels'?"),
    ({"wheels": ()}, "wheels must have at least one value"),
    ({"wheels": 3}, "wheels must be a sequence of values, got 3"),
    ({"wheels": [3]}, "each of wheels must be a Wheel, got 3"),
    ({"wheels": [{"siz": 3}]}, "Wheel has no option 'siz'; did you mean 'size'?"),
    ({"front": {"kind": "stel"}}, "kind must be one of wood, steel; got 'stel'; did you mean 'steel'?"),
    ({"loads": (1, 0)}, "each of loads must be at least 1, got 0"),
    ({"loads": "12"}, "loads must be a sequence of values, got '12'"),
    ({"share": 1.5}, r"share must lie in \[0, 1\], got 1.5"),
    ({"share": "half"}, "share must be a number, got 'half'"),
    ({"grip": 0}, "grip must be positive, got 0"),
    ({"seats": -1}, "seats must not be negative, got -1"),
    ({"offset": -2}, "offset must be at least -1, got -2"),
    ({"angles": (1, 2, 3)}, r"angles must be 2 values, got \(1, 2, 3\)"),
    ({"angles": (1, "2")}, "each of angles must be a number, got '2'"),
    ({"horses": 0}, "horses must be at least 1, got 0"),
    ({"spokes": ()}, "spokes must have at least one value"),
    ({"owner": 3}, "owner must be a string, got 3"),
    ({"carriage": 3}, r"Cart no longer has an option 'carriage'; use front=Wheel\(…\)"),
    ({"drop_rate": 1.0}, r"drop_rate must lie in \[0, 1\), got 1.0"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Cart().override(**options)
    with pytest.raises(ValueError, match=message):
        Cart(**options)


def test_good_values_are_kept():
    cart = Cart(grip=0.1, offset=-1, angles=[0, 1], horses=2, spokes=[3, 4], owner=Path("me"))
    assert (cart.angles, cart.horses, cart.spokes, cart.owner) == ((0.0, 1.0), 2, (3, 4), "me")
    assert Cart(horses=None).horses is None


def test_options_are_copied_pickled_and_have_a_signature():
    cart = Cart(loads=(7,))
    assert copy.deepcopy(cart) == pickle.loads(pickle.dumps(cart)) == cart
    assert list(inspect.signature(Wheel).parameters) == ["size", "kind"]


def test_a_source_may_be_given_without_its_name():
    assert vt.DataConfig("shapes", limit=3) == vt.DataConfig(source="shapes", limit=3)
