"""What an evaluation tells beyond its figures: errors, thresholds, calibration, intervals."""
