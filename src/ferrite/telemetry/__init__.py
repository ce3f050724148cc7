"""What the server may say it has done: counters, rates, histograms and the ring of finished requests.

Arithmetic only: every clock reading is a parameter, and what nothing has measured is ``None``, never 0.
"""

from ferrite.telemetry.batcher import BatcherSnapshot, EngineMeters, SpeculationStats
from ferrite.telemetry.histogram import Histogram, HistogramSnapshot
from ferrite.telemetry.rate import RateWindow
from ferrite.telemetry.ring import MAX_PAGE, FinishedRequest, Page, RequestRing, RequestRow
from ferrite.telemetry.serving import Percentiles, ServingStats

__all__ = [
    "MAX_PAGE",
    "BatcherSnapshot",
    "EngineMeters",
    "FinishedRequest",
    "Histogram",
    "HistogramSnapshot",
    "Page",
    "Percentiles",
    "RateWindow",
    "RequestRing",
    "RequestRow",
    "ServingStats",
    "SpeculationStats",
]
