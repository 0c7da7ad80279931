"""The Attention page: maps of a text that was read, all heads, the atlas, scores in parts."""
