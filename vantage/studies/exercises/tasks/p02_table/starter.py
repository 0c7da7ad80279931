# vantage exercise P2: the sinusoidal table by hand
# d = 4, four decimals each. Replace every None.

PE0 = [None, None, None, None]
PE1 = [None, None, None, None]
PE2 = [None, None, None, None]
