"""Reads and writes the text of recipes, such as "decode_cache,thread_workers=2". An unknown technique is an error."""

from __future__ import annotations

from slipstream.records import Choice, Recipe, Setting
from slipstream.techniques._core.catalogue import environment_of, technique


def parse_recipe(text: str) -> Recipe:
    choices = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        ident, _, value = word.partition("=")
        allowed = list(getattr(technique(ident), "VALUES", (True,)))
        setting: Setting = int(value) if value.isdecimal() else value or True
        if setting not in allowed:
            raise ValueError(f"{ident} has no setting {setting!r}; it has {allowed[:8]}")
        choices.append(Choice(ident, setting))
    return Recipe(tuple(choices))


def written(recipe: Recipe) -> str:
    """The text of a recipe that parse_recipe reads."""
    return ",".join(map(str, recipe.choices))


def variables(recipe: Recipe) -> dict[str, str]:
    """The environment variables of the recipe that must be set before a process starts."""
    return {k: v for c in recipe.choices for k, v in environment_of(c.technique, c.setting).items()}
