"""EfficientDet (Tan et al., 2020)."""
