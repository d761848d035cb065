"""Images: decoding, headers, drawing."""
