"""Keys of the records (`tf.train.Example`, one per image) in an `Examples` artifact.

The `image/...` keys are those of the TF Object Detection API and google/automl, so
records are compatible in both directions.
"""

ENCODED = "image/encoded"  # bytes [1]: the original image file
FORMAT = "image/format"  # bytes [1]: "jpeg", "png", ... as found in the bytes
FILENAME = "image/filename"  # bytes [1]: COCO's file_name
SOURCE_ID = "image/source_id"  # bytes [1]: COCO's image id in decimal
SHA256 = "image/key/sha256"  # bytes [1]: hex digest of ENCODED
HEIGHT = "image/height"  # int64 [1]: pixels
WIDTH = "image/width"  # int64 [1]: pixels

# One value per object; coordinates are normalised: 0 <= min <= max <= 1.
BBOX_XMIN = "image/object/bbox/xmin"  # float [N]
BBOX_XMAX = "image/object/bbox/xmax"  # float [N]
BBOX_YMIN = "image/object/bbox/ymin"  # float [N]
BBOX_YMAX = "image/object/bbox/ymax"  # float [N]
CLASS_LABEL = "image/object/class/label"  # int64 [N]: category id of the data set
CLASS_TEXT = "image/object/class/text"  # bytes [N]: category name
IS_CROWD = "image/object/is_crowd"  # int64 [N]: 0 or 1
AREA = "image/object/area"  # float [N]: square pixels, COCO's `area`
WEIGHT = "image/object/weight"  # float [N]: factor of the loss, >= 0; absent if no annotation has one

# bytes [1]: zlib-compressed UTF-8 JSON {"image": {...}, "annotations": [...]} with the
# image's entries exactly as in the COCO file.  Evaluation reads them and is therefore exact;
# compression also keeps them small in statistics.
COCO = "coco/annotations"
