"""Published weights: ImageNet backbones, COCO detectors, and the choice between them."""
