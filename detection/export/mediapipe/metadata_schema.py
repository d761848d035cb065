"""Schemas of MediaPipe's metadata, with the numbers of enumerations as bytes.

Sources: `mediapipe/tasks/metadata/metadata_schema.fbs` (version 1.5.0) and `object_detector_metadata_schema.fbs` of
MediaPipe.
"""

from typing import Any

from detection.export.mediapipe.flatbuffer_tables import parse_schema

PARSER_VERSION = (1, 5, 0)  # MediaPipe's reader refuses files that require a newer one
MIN_PARSER_VERSION = "1.0.0"  # supports detectors with suppression in the file
MIN_PARSER_VERSION_CUSTOM = "1.5.0"  # supports custom metadata

METADATA_NAME = b"TFLITE_METADATA"  # name of the model's buffer
DETECTOR_METADATA_NAME = "DETECTOR_METADATA"  # name of the custom metadata

# AssociatedFileType
TENSOR_AXIS_LABELS = 2
TENSOR_VALUE_LABELS = 3
TENSOR_AXIS_SCORE_CALIBRATION = 4

RGB = 1  # ColorSpaceType
BOUNDARIES = 1  # BoundingBoxType
RATIO = 0  # CoordinateType
BOX_INDEX = [1, 0, 3, 2]  # indices of left, top, right and bottom in our boxes (ymin, xmin, ymax, xmax)

METADATA = parse_schema("""
file_identifier "M001";
root_type ModelMetadata;

table ModelMetadata {
  name:string; description:string; version:string; subgraph_metadata:[SubGraphMetadata]; author:string; license:string;
  associated_files:[AssociatedFile]; min_parser_version:string;
}
table SubGraphMetadata {
  name:string; description:string; input_tensor_metadata:[TensorMetadata]; output_tensor_metadata:[TensorMetadata];
  associated_files:[AssociatedFile]; input_process_units:[ProcessUnit]; output_process_units:[ProcessUnit];
  input_tensor_groups:[TensorGroup]; output_tensor_groups:[TensorGroup]; custom_metadata:[CustomMetadata];
}
table TensorMetadata {
  name:string; description:string; dimension_names:[string]; content:Content; process_units:[ProcessUnit]; stats:Stats;
  associated_files:[AssociatedFile];
}
table Content { content_properties:ContentProperties; range:ValueRange; }
union ContentProperties { FeatureProperties, ImageProperties, BoundingBoxProperties, AudioProperties }
table FeatureProperties { }
table ImageProperties { color_space:byte; default_size:ImageSize; }
table ImageSize { width:uint; height:uint; }
table BoundingBoxProperties { index:[uint]; type:byte; coordinate_type:byte; }
table AudioProperties { sample_rate:uint; channels:uint; }
table ValueRange { min:int; max:int; }
table ProcessUnit { options:ProcessUnitOptions; }
union ProcessUnitOptions {
  NormalizationOptions, ScoreCalibrationOptions, ScoreThresholdingOptions, BertTokenizerOptions,
  SentencePieceTokenizerOptions, RegexTokenizerOptions
}
table NormalizationOptions { mean:[float]; std:[float]; }
table ScoreCalibrationOptions { score_transformation:byte; default_score:float; }
table ScoreThresholdingOptions { global_score_threshold:float; }
table BertTokenizerOptions { vocab_file:[AssociatedFile]; }
table SentencePieceTokenizerOptions { sentencePiece_model:[AssociatedFile]; vocab_file:[AssociatedFile]; }
table RegexTokenizerOptions { delim_regex_pattern:string; vocab_file:[AssociatedFile]; }
table Stats { max:[float]; min:[float]; }
table TensorGroup { name:string; tensor_names:[string]; }
table AssociatedFile { name:string; description:string; type:byte; locale:string; version:string; }
table CustomMetadata { name:string; data:[ubyte]; }
""")

DETECTOR_METADATA = parse_schema("""
file_identifier "V001";
root_type ObjectDetectorOptions;

table ObjectDetectorOptions {
  min_parser_version:string; ssd_anchors_options:SsdAnchorsOptions; tensors_decoding_options:TensorsDecodingOptions;
}
table SsdAnchorsOptions { fixed_anchors_schema:FixedAnchorsSchema; }
table FixedAnchorsSchema { anchors:[FixedAnchor]; }
table FixedAnchor { x_center:float; y_center:float; width:float; height:float; }
table TensorsDecodingOptions {
  num_classes:int; num_boxes:int; num_coords:int; keypoint_coord_offset:int; num_keypoints:int;
  num_values_per_keypoint:int; x_scale:float; y_scale:float; w_scale:float; h_scale:float;
  apply_exponential_on_box_size:bool; sigmoid_score:bool;
}
""")


def decoding_options(*, classes: int, boxes: int) -> dict[str, Any]:
    """Returns the values of `TensorsDecodingOptions` for deltas (ty, tx, th, tw) in units of the anchor, and logits.

    Args:
        classes: number of classes.
        boxes: number of anchors.
    """
    return {
        "num_classes": classes,
        "num_boxes": boxes,
        "num_coords": 4,
        "keypoint_coord_offset": 0,
        "num_keypoints": 0,
        "num_values_per_keypoint": 2,
        "x_scale": 1.0,
        "y_scale": 1.0,
        "w_scale": 1.0,
        "h_scale": 1.0,
        "apply_exponential_on_box_size": True,
        "sigmoid_score": True,
    }
