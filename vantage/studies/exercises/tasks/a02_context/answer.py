# vantage exercise A2: a context vector by hand
# exp(0.5) = 1.6487, exp(0.2) = 1.2214, exp(0.7) = 2.0138; they add up to 4.8839.

SCORES = [0.5, 0.2, 0.7]
WEIGHTS = [0.3376, 0.2501, 0.4123]
CONTEXT = [0.7499, 0.6624]  # (w1 + w3, w2 + w3)
