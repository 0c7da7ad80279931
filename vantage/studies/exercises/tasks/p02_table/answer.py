# vantage exercise P2: the sinusoidal table by hand
# i = 0 turns by t / 1, i = 1 by t / 10000^(2/4) = t / 100.

PE0 = [0.0, 1.0, 0.0, 1.0]
PE1 = [0.8415, 0.5403, 0.0100, 0.9999]  # sin 1, cos 1, sin 0.01, cos 0.01 (0.99995: 1.0000 is right as well)
PE2 = [0.9093, -0.4161, 0.0200, 0.9998]
