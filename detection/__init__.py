"""The vision library: usable alone, without TFX, Beam or KFP installed."""
