"""Which encoding holds beyond the training length? Many small runs, compared honestly."""
