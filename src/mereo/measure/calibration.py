"""Calibration of the report: see `mereo.inference.calibration`."""

from mereo.inference.calibration import (
    CONFIDENCES,
    Reliability,
    brier_score,
    confidences,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    ways_of,
)

__all__ = [
    "CONFIDENCES", "Reliability", "brier_score", "confidences", "expected_calibration_error", "negative_log_likelihood",
    "reliability", "ways_of",
]  # fmt: skip
