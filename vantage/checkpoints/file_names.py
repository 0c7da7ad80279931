"""What the files of a folder in the Hugging Face layout are called, for those who only look whether they are there."""

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
