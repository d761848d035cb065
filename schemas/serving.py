"""The exported SavedModel's signatures: what a model server's clients rely on."""

ENCODED_SIGNATURE = "serving_default"  # encoded images of any size
PIXEL_SIGNATURE = "serving_images"  # one uint8 batch

IMAGES = "images"  # string [B], encoded; or uint8 [B, H, W, 3]

BOXES = "detection_boxes"  # float32 [B, N, 4]: ymin, xmin, ymax, xmax, 0..1
SCORES = "detection_scores"  # float32 [B, N], best first
CLASSES = "detection_classes"  # int64 [B, N]: the data set's own category ids
VALID = "valid"  # bool [B], of `serving_default` alone: whether the image could be decoded
COUNT = "num_detections"  # int32 [B]: how many rows of each image count

WEIGHTS_PART = "weights"  # of its variables file: a dictionary of the model's variables by path
