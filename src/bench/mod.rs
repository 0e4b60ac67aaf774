//! Paired measurements: alternating arms, medians, ratios.
