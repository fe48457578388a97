"""Options check their own values, and are written and read back."""

from dataclasses import dataclass
from typing import Literal

import pytest

from vitreous.options import Options


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


def test_written_and_read_back():
    cart = Cart(wheels=[Wheel(size=2), Wheel(kind="steel")], loads=[4], front=Wheel(size=9))
    assert cart.to_json() == {
        "wheels": [{"size": 2, "kind": "wood"}, {"size": 1, "kind": "steel"}],
        "loads": [4],
        "front": {"size": 9, "kind": "wood"},
        "drop_rate": 0.0,
    }
    assert Cart(**cart.to_json()) == cart
    assert isinstance(cart.wheels, tuple)


BAD = [
    ({"whels": ()}, "Cart has no option 'whels'; did you mean 'wheels'?"),
    ({"wheels": ()}, "wheels must have at least one value"),
    ({"wheels": 3}, "wheels must be several values in a row, got 3"),
    ({"wheels": [3]}, "each of wheels must be a Wheel, got 3"),
    ({"wheels": [{"siz": 3}]}, "Wheel has no option 'siz'; did you mean 'size'?"),
    ({"front": {"kind": "stel"}}, "kind must be one of wood, steel; got 'stel'; did you mean 'steel'?"),
    ({"loads": (1, 0)}, "each of loads must be at least 1, got 0"),
    ({"loads": "12"}, "loads must be several values in a row, got '12'"),
    ({"drop_rate": 1.0}, r"drop_rate must lie in \[0, 1\), got 1.0"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Cart().override(**options)
