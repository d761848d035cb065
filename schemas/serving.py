"""Signatures of the exported SavedModel: names of inputs and outputs, as used by clients of a model server."""

ENCODED_SIGNATURE = "serving_default"  # encoded images of any size
PIXEL_SIGNATURE = "serving_images"  # one uint8 batch
EXAMPLE_SIGNATURE = "serving_examples"  # serialized tf.train.Examples

IMAGES = "images"  # string [B], encoded; or uint8 [B, H, W, 3]
EXAMPLES = "examples"  # string [B]
OD_API_INPUT = "input_tensor"  # in place of both, with the outputs of the TF Object Detection API

BOXES = "detection_boxes"  # float32 [B, N, 4]: ymin, xmin, ymax, xmax, 0..1
SCORES = "detection_scores"  # float32 [B, N], best first
CLASSES = "detection_classes"  # int64 [B, N]: category ids of the data set
COUNT = "num_detections"  # int32 [B]: valid rows per image
VALID = "valid"  # bool [B], of `serving_default` and `serving_examples`: False for an undecodable image

# Outputs of a model without non-maximum suppression, instead of those above; the names of the TF Object Detection API.
RAW_BOXES = "raw_detection_boxes"  # float32 [B, A, 4]: ymin, xmin, ymax, xmax; 0..1 is the image, not clipped to it
RAW_SCORES = "raw_detection_scores"  # float32 [B, A, C]: probabilities of the classes, in the order of LABELS_JSON

# Outputs of a LiteRT file without decoding and suppression, which MediaPipe Tasks does.
BOX_DELTAS = "box_deltas"  # float32 [1, A, 4]: ty, tx, th, tw of the anchors in the file's metadata
CLASS_LOGITS = "class_logits"  # float32 [1, A, C]

# Outputs of detectors with masks or keypoints.
# Crops: float32 [B, N, 28, 28], probabilities within each box.  Pasted: uint8 [B, N, H, W], 1 inside; H, W are those of
# the largest image of the batch; smaller images are at the top left.  RLE: string [B, N], the compressed counts of
# COCO's RLE in each image's own size; empty for padding.
MASKS = "detection_masks"
KEYPOINTS = "detection_keypoints"  # float32 [B, N, K, 3]: y, x (0..1), score
# Outputs of a detector with anchors and one stage, with those of the API: float32 [B, N], and [B, N, C], or C + 1 with
# the background first.
ANCHOR_INDICES = "detection_anchor_indices"
CLASS_SCORES = "detection_multiclass_scores"
KEYPOINT_SCORES = "detection_keypoint_scores"  # float32 [B, N, K] of the Object Detection API, whose keypoints are y, x

WEIGHTS_PART = "weights"  # key in its variables file: the model's variables by path
