"""Every mixer by name, with the options it has unless told otherwise. A new mixer is one file and one line here."""

from __future__ import annotations

from vitreous.layers.attention import Full
from vitreous.layers.mixer import Mixer

MIXERS: dict[str, Mixer] = {mixer.name: mixer for mixer in (Full(),)}
