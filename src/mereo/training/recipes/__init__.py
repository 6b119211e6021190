"""Published training recipes as data, to be run as they are or with changes.

A recipe changes fields of `TrainConfig`; `by_data` holds the differences for single data sets. The first
network is the one it was published for. These modules import no torch.
"""

import fnmatch

from mereo.errors import unknown
from mereo.training.config import TrainConfig
from mereo.training.recipes import capsule, capsule_family, language, vision
from mereo.training.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "apply_recipe", "is_recipe", "list_recipes"]

RECIPES: dict[str, Recipe] = capsule.RECIPES | capsule_family.RECIPES | vision.RECIPES | language.RECIPES
_OLDER_NAMES = {"kiefer": "capsnet_routing_study", "deepcaps_second": "deepcaps_strict_margins"}


def list_recipes(pattern: str = "*") -> list[str]:
    """Names of the recipes that match a shell-style pattern, sorted."""
    return sorted(fnmatch.filter(RECIPES, pattern))


def is_recipe(name: str | None) -> bool:
    """Whether there is a recipe of that name, or there was one in an earlier version."""
    return _OLDER_NAMES.get(name or "", name) in RECIPES


def apply_recipe(name: str, model: str | None = None, data: str | None = None) -> TrainConfig:
    """The configuration of a recipe, for its own network and data set or for others."""
    name = _OLDER_NAMES.get(name, name)
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    recipe = RECIPES[name]
    data = data or str(recipe.changes["data"])
    by_data = recipe.by_data.get(data, recipe.by_data.get(data.partition(":")[0], {}))
    changes = {**recipe.changes, **by_data, "data": data, "recipe": name}
    if model:
        changes["model"] = model
    return TrainConfig().replace(**changes)
