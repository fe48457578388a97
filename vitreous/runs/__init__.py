"""From a recipe to a run folder: find or choose the recipe, prepare, check, train, record."""
