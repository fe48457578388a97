"""What a model is trained for: a loss for a batch, metrics for a whole set, predictions for an image.

TASKS is the table of all tasks by name: a new one is a file here and a line in it.
"""

from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.distill import Distill
from vitreous.tasks.multilabel import MultiLabel
from vitreous.tasks.segment import Segment

TASKS: dict[str, Task] = {task.name: task for task in (Classify(), MultiLabel(), Distill(), Segment())}
