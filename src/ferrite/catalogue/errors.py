"""The one error of the catalogue."""


class CatalogueError(Exception):
    """A model that could not be had. The text is one line that names the model or file."""
