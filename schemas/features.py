"""Keys of the records (`tf.train.Example`, one per image) in an `Examples` artifact.

The `image/...` keys are those that the TF Object Detection API and google/automl
write and read, so their readers understand our records and ours theirs.
"""

ENCODED = "image/encoded"  # bytes [1]: the image file as it was
FORMAT = "image/format"  # bytes [1]: "jpeg", "png", ... as found in the bytes
FILENAME = "image/filename"  # bytes [1]: COCO's file_name
SOURCE_ID = "image/source_id"  # bytes [1]: COCO's image id in decimal
SHA256 = "image/key/sha256"  # bytes [1]: hex digest of ENCODED
HEIGHT = "image/height"  # int64 [1]: pixels
WIDTH = "image/width"  # int64 [1]: pixels

# One entry per object; coordinates are normalised: 0 <= min <= max <= 1.
BBOX_XMIN = "image/object/bbox/xmin"  # float [N]
BBOX_XMAX = "image/object/bbox/xmax"  # float [N]
BBOX_YMIN = "image/object/bbox/ymin"  # float [N]
BBOX_YMAX = "image/object/bbox/ymax"  # float [N]
CLASS_LABEL = "image/object/class/label"  # int64 [N]: the data set's own category id
CLASS_TEXT = "image/object/class/text"  # bytes [N]: category name
IS_CROWD = "image/object/is_crowd"  # int64 [N]: 0 or 1
AREA = "image/object/area"  # float [N]: square pixels, COCO's `area`

# bytes [1]: zlib-compressed UTF-8 JSON {"image": {...}, "annotations": [...]}, the
# image's entries exactly as they stood in the COCO file.  Evaluation reads this, so
# that it is exact to the last bit; compressed, it stays small in statistics too.
COCO = "coco/annotations"
