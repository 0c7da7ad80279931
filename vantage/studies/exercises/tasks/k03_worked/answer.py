# vantage exercise K3: keys and values by hand
# x3: k = (5, 5·2 + 6) = (5, 16), v = (5·0.5 + 6, −5·0.5 + 6·0.5) = (8.5, 0.5)

K = [[1, 4], [3, 10], [5, 16]]
V = [[2.5, 0.5], [5.5, 0.5], [8.5, 0.5]]
OUT = [8.5, 0.5]  # scores 29, 75, 121 over √2: the last takes all but e^(−32.5)
