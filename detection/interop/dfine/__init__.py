"""D-FINE: files of weights of its authors, of DEIM and RT-DETRv4, which have its network, and of Hugging Face."""
