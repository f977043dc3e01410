"""Sharpness-aware minimisation against trace penalties, at equal trace and at equal cost."""
