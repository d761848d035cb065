"""Keys of COCO TFRecords that ours do not have, as the TF Object Detection API and google/automl write them."""

OBJECT_PREFIX = "image/object/"

CAPTION = "image/caption"  # bytes [C]: sentences
ATTRIBUTE_LABEL = "image/object/attribute/label"  # int64 [N x attributes]

# bytes [N]: a PNG of the image's size each, not 0 inside; or float [N x H x W].
MASK = "image/object/mask"
# float: all polygons' x, y in pixels; -1 stands between polygons, -2 between objects, -3 pads.
POLYGON = "image/object/polygon"

# N objects of K points each, N x K values; x and y are normalised.
KEYPOINT_X = "image/object/keypoint/x"  # float
KEYPOINT_Y = "image/object/keypoint/y"  # float
KEYPOINT_VISIBILITY = "image/object/keypoint/visibility"  # int64: COCO's 0, 1 or 2
KEYPOINT_TEXT = "image/object/keypoint/text"  # bytes: the point's name
KEYPOINT_NUM = "image/object/keypoint/num"  # int64 [N]: labelled points; some writers: points
