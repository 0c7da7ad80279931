"""What a model is, as frozen data: positions, masks, the protocols of the parts, the specs."""
