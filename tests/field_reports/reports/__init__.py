"""Sixty reports of what broke for users of other local servers, and the tests that hold each of them here.

A source is a public issue or pull request, ``owner/repository#number``; the titles are our own words. A
report that comes back fails one of its tests. Reports 54, 55 and 58 concern routes that come later: until
then these answer 501 by name, and their tests say so.
"""

from tests.field_reports.reports import (
    cache,
    clients,
    prompts,
    sampling,
    scheduling,
    security,
    text,
    tools,
    validation,
)
from tests.field_reports.reports.report import Report

KINDS = (text, prompts, tools, scheduling, cache, sampling, validation, security, clients)

REPORTS: dict[str, Report] = {name: report for kind in KINDS for name, report in kind.REPORTS.items()}
