"""What a download shows on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from ferrite.catalogue import LineReport, console_report
from ferrite.catalogue.report import BarReport


def test_lines_come_at_each_tenth() -> None:
    output = io.StringIO()
    report = LineReport(Console(file=output))
    report.message("tiny: downloading")
    for done in (0, 50, 120, 199, 350, 1000):
        report.progress(done * 1_000_000, 1_000_000_000)
    assert output.getvalue().splitlines() == [
        "tiny: downloading",
        "10 % of 1000 MB",
        "30 % of 1000 MB",
        "100 % of 1000 MB",
    ]


def test_a_bar_per_file() -> None:
    bar = Progress(console=Console(file=io.StringIO(), force_terminal=True), disable=True)
    report = BarReport(bar)
    for done in (0, 5, 10):
        report.progress(done, 10)
    report.progress(3, 8)
    assert [(task.completed, task.total) for task in bar.tasks] == [(10, 10), (3, 8)]


def test_off_a_terminal_the_report_is_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with console_report() as report:
        report.message("tiny: [bold] is text")
        report.progress(10, 10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tiny: [bold] is text\n100 % of 0 MB\n"
