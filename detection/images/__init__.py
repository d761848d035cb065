"""Image files: reading, headers, decoding, and drawing on images."""
