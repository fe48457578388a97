"""Vitreous: vision transformers you can see through.

Names are imported when they are first used, so that ``import vitreous`` costs milliseconds, not torch.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # `as` makes a name public to type checkers
    from vitreous.compress.fold import Fold as Fold
    from vitreous.compress.fold import fold as fold
    from vitreous.compress.replace_activation import ReplaceActivation as ReplaceActivation
    from vitreous.cost import Cost as Cost
    from vitreous.cost import cost as cost
    from vitreous.data.augment import Augment as Augment
    from vitreous.data.base import ArrayDataset as ArrayDataset
    from vitreous.data.base import Arrays as Arrays
    from vitreous.data.base import Dataset as Dataset
    from vitreous.data.base import FileDataset as FileDataset
    from vitreous.data.shapes import Shapes as Shapes
    from vitreous.data.sources import open_data as open_data
    from vitreous.data.splits import Splits as Splits
    from vitreous.data.transforms import transforms as transforms
    from vitreous.data.view import View as View
    from vitreous.deploy.accelerate import Accelerated as Accelerated
    from vitreous.deploy.accelerate import accelerate as accelerate
    from vitreous.deploy.evaluate import Evaluation as Evaluation
    from vitreous.deploy.evaluate import evaluate as evaluate
    from vitreous.deploy.export import Exported as Exported
    from vitreous.deploy.export import export as export
    from vitreous.deploy.predictor import Predictor as Predictor
    from vitreous.explain.explainer import explain as explain
    from vitreous.explain.explanation import Explanation as Explanation
    from vitreous.explain.record import record as record
    from vitreous.explain.trace import Trace as Trace
    from vitreous.models import list_models as list_models
    from vitreous.models.base import Backbone as Backbone
    from vitreous.models.base import Config as Config
    from vitreous.models.base import FeatureMap as FeatureMap
    from vitreous.models.base import Features as Features
    from vitreous.models.base import Model as Model
    from vitreous.models.base import ModelConfig as ModelConfig
    from vitreous.models.edit import Edit as Edit
    from vitreous.models.pyramid import PyramidConfig as PyramidConfig
    from vitreous.models.pyramid import StageConfig as StageConfig
    from vitreous.models.segmenter import SegmenterConfig as SegmenterConfig
    from vitreous.runs.recipe import DataConfig as DataConfig
    from vitreous.runs.recipe import Recipe as Recipe
    from vitreous.runs.run import train as train
    from vitreous.runs.trained import TrainResult as TrainResult
    from vitreous.samples import Batch as Batch
    from vitreous.samples import Boxes as Boxes
    from vitreous.samples import Classes as Classes
    from vitreous.samples import Inputs as Inputs
    from vitreous.samples import Masks as Masks
    from vitreous.samples import MultiLabels as MultiLabels
    from vitreous.samples import Targets as Targets
    from vitreous.samples import Texts as Texts
    from vitreous.spec import Labels as Labels
    from vitreous.spec import Preprocess as Preprocess
    from vitreous.spec import Spec as Spec
    from vitreous.tasks.base import Objective as Objective
    from vitreous.tasks.base import Task as Task
    from vitreous.tasks.classify import Classify as Classify
    from vitreous.tasks.distill import Distill as Distill
    from vitreous.tasks.multilabel import MultiLabel as MultiLabel
    from vitreous.tasks.predictions import ClassScores as ClassScores
    from vitreous.tasks.predictions import Detections as Detections
    from vitreous.tasks.predictions import LabelScores as LabelScores
    from vitreous.tasks.predictions import Prediction as Prediction
    from vitreous.tasks.predictions import Segmentation as Segmentation
    from vitreous.tasks.segment import Segment as Segment
    from vitreous.train.config import TrainConfig as TrainConfig
    from vitreous.weights.files import save as save
    from vitreous.weights.load import LoadReport as LoadReport
    from vitreous.weights.load import load as load
    from vitreous.weights.load import load_weights as load_weights
    from vitreous.weights.pretrained import create_model as create_model
    from vitreous.weights.publish import push_to_hub as push_to_hub
    from vitreous.weights.published import list_weights as list_weights

_HOME = {
    "Fold": "vitreous.compress.fold",
    "fold": "vitreous.compress.fold",
    "ReplaceActivation": "vitreous.compress.replace_activation",
    "Cost": "vitreous.cost",
    "cost": "vitreous.cost",
    "Augment": "vitreous.data.augment",
    "ArrayDataset": "vitreous.data.base",
    "Arrays": "vitreous.data.base",
    "Dataset": "vitreous.data.base",
    "FileDataset": "vitreous.data.base",
    "View": "vitreous.data.view",
    "Shapes": "vitreous.data.shapes",
    "open_data": "vitreous.data.sources",
    "Splits": "vitreous.data.splits",
    "transforms": "vitreous.data.transforms",
    "Accelerated": "vitreous.deploy.accelerate",
    "accelerate": "vitreous.deploy.accelerate",
    "Exported": "vitreous.deploy.export",
    "export": "vitreous.deploy.export",
    "Predictor": "vitreous.deploy.predictor",
    "Evaluation": "vitreous.deploy.evaluate",
    "evaluate": "vitreous.deploy.evaluate",
    "Explanation": "vitreous.explain.explanation",
    "Trace": "vitreous.explain.trace",
    "explain": "vitreous.explain.explainer",
    "record": "vitreous.explain.record",
    "list_models": "vitreous.models",
    "Backbone": "vitreous.models.base",
    "Config": "vitreous.models.base",
    "FeatureMap": "vitreous.models.base",
    "Features": "vitreous.models.base",
    "Model": "vitreous.models.base",
    "ModelConfig": "vitreous.models.base",
    "SegmenterConfig": "vitreous.models.segmenter",
    "Edit": "vitreous.models.edit",
    "PyramidConfig": "vitreous.models.pyramid",
    "StageConfig": "vitreous.models.pyramid",
    "DataConfig": "vitreous.runs.recipe",
    "Recipe": "vitreous.runs.recipe",
    "train": "vitreous.runs.run",
    "TrainResult": "vitreous.runs.trained",
    "Batch": "vitreous.samples",
    "Boxes": "vitreous.samples",
    "Classes": "vitreous.samples",
    "Inputs": "vitreous.samples",
    "Masks": "vitreous.samples",
    "MultiLabels": "vitreous.samples",
    "Targets": "vitreous.samples",
    "Texts": "vitreous.samples",
    "Labels": "vitreous.spec",
    "Preprocess": "vitreous.spec",
    "Spec": "vitreous.spec",
    "Classify": "vitreous.tasks.classify",
    "Distill": "vitreous.tasks.distill",
    "Objective": "vitreous.tasks.base",
    "Task": "vitreous.tasks.base",
    "MultiLabel": "vitreous.tasks.multilabel",
    "ClassScores": "vitreous.tasks.predictions",
    "Detections": "vitreous.tasks.predictions",
    "LabelScores": "vitreous.tasks.predictions",
    "Prediction": "vitreous.tasks.predictions",
    "Segmentation": "vitreous.tasks.predictions",
    "Segment": "vitreous.tasks.segment",
    "TrainConfig": "vitreous.train.config",
    "save": "vitreous.weights.files",
    "LoadReport": "vitreous.weights.load",
    "load": "vitreous.weights.load",
    "load_weights": "vitreous.weights.load",
    "create_model": "vitreous.weights.pretrained",
    "list_weights": "vitreous.weights.published",
    "push_to_hub": "vitreous.weights.publish",
}
_RENAMED = {"portrait": "explain", "Portrait": "Explanation"}
__all__ = ["__version__", *_HOME]


class _Package(ModuleType):
    """Keeps ``vt.cost`` the function where importing the module ``vitreous.cost`` would put the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"vitreous.{name} is now vitreous.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[__name__], _RENAMED[name])
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
