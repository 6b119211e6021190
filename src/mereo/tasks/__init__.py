"""Tasks: what a batch holds, what is minimised, what is measured, and what a prediction looks like."""

from mereo.tasks.base import TASKS, Metrics, Objective, Task, get_task, list_tasks, register_task
from mereo.tasks.classification import Classification

__all__ = ["TASKS", "Classification", "Metrics", "Objective", "Task", "get_task", "list_tasks", "register_task"]
