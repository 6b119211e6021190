"""Tasks: the contents of a batch, the loss, the metrics and the form of a prediction."""

from mereo.tasks.attribute_embedding import AttributeEmbedding
from mereo.tasks.base import TASKS, Metrics, Objective, Task, get_task, list_tasks, register_task
from mereo.tasks.captions import Captions
from mereo.tasks.classification import Classification
from mereo.tasks.detection import Detection
from mereo.tasks.drawing import Drawing
from mereo.tasks.embedding import Embedding
from mereo.tasks.language import Language
from mereo.tasks.multilabel import Multilabel
from mereo.tasks.pointers import Pointers
from mereo.tasks.questions import Questions
from mereo.tasks.recall import Recall
from mereo.tasks.reconstruction import Reconstruction
from mereo.tasks.regression import Regression
from mereo.tasks.scanpaths import Scanpaths
from mereo.tasks.segmentation import Segmentation
from mereo.tasks.sequence import SequenceClasses
from mereo.tasks.subspace_embedding import SubspaceEmbedding
from mereo.tasks.triples import Triples

__all__ = [
    "TASKS",
    "AttributeEmbedding",
    "Captions",
    "Classification",
    "Detection",
    "Drawing",
    "Embedding",
    "Language",
    "Metrics",
    "Multilabel",
    "Objective",
    "Pointers",
    "Questions",
    "Recall",
    "Reconstruction",
    "Regression",
    "Scanpaths",
    "Segmentation",
    "SequenceClasses",
    "SubspaceEmbedding",
    "Task",
    "Triples",
    "get_task",
    "list_tasks",
    "register_task",
]
