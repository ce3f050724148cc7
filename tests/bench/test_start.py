"""What ``benchmarks.start`` makes of its measurements."""

from benchmarks.start import Start, bound, report


def test_the_bound_is_a_share_of_the_file_and_a_fixed_part() -> None:
    assert bound(0) == 150_000_000
    assert bound(1_000_000_000) == 1_250_000_000


def test_times_are_medians_and_memory_is_the_worst() -> None:
    starts = [
        Start(seconds=3.0, load_seconds=2.0, resident=100_000_000, peak=130_000_000),
        Start(seconds=1.0, load_seconds=0.5, resident=80_000_000, peak=260_000_000),
        Start(seconds=2.0, load_seconds=1.25, resident=90_000_000, peak=120_000_000),
    ]
    assert report(100_000_000, starts).splitlines() == [
        "start to ready      2.00 s    1.00 to 3.00 in 3 starts",
        "  of it, model      1.25 s",
        "file                 100 MB",
        "bound                260 MB   1.1 x file + 150 MB",
        "memory, ready        100 MB   0.38 of the bound",
        "memory, peak         260 MB   1.00 of the bound",
    ]
