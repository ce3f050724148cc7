"""Models by name: resolved to verified local files, downloaded once, re-used offline."""

from ferrite.catalogue.entries import CATALOGUE, DEFAULT_MODEL, Entry, lookup
from ferrite.catalogue.errors import CatalogueError
from ferrite.catalogue.report import LineReport, Report, SilentReport, console_report
from ferrite.catalogue.store import default_cache_dir, obtain, resolve

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "CatalogueError",
    "Entry",
    "LineReport",
    "Report",
    "SilentReport",
    "console_report",
    "default_cache_dir",
    "lookup",
    "obtain",
    "resolve",
]
