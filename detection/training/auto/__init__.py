"""What a training decides from its data: input size, length, kept images and weights."""
