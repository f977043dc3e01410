"""What Kimura & Naganuma's definition, theorem, corollaries and conjecture say in numbers, on networks of digits."""
