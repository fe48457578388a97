"""Tasks: a loss per batch, metrics per dataset, and typed predictions per image.

``TASKS`` lists all tasks by name. To add one, subclass :class:`Task` in a module of this package and list it here.
"""

from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.distill import Distill
from vitreous.tasks.multilabel import MultiLabel
from vitreous.tasks.segment import Segment

TASKS: dict[str, Task] = {task.name: task for task in (Classify(), MultiLabel(), Distill(), Segment())}
