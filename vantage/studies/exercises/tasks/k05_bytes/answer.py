# vantage exercise K5: the size of a cache


def cache_bytes(layers, heads, kv_heads, width, batch, length, bytes_per_number):
    head = width // heads
    return 2 * layers * batch * length * kv_heads * head * bytes_per_number
