"""Messages of the TF Object Detection API's pipeline.config, by which protocol buffer text is parsed.

Names, types and defaults are those of the original's `protos/`.  A message is a list of `name:type`: without `:type`, a
float; without a type, the message of that name, such as BoxCoder for `box_coder:`.  `=` precedes a default other than
0, false and "", `*` follows the type of a repeated field, and `oneof/` precedes the name of a field of a oneof, or
follows the name of a message of one oneof.  Numbers of fields, which text does not have, and map fields, which text
writes like repeated messages, are not as there.  The fields of a message `Other` are not known here.  `!` marks fields
that the original's TF2 trainer ignores, `~` those without an effect on its results.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Numbers count from 0, or go on from `=NUMBER`.
ENUMS = {
    "Activation": "NONE RELU RELU_6 SWISH",
    "CheckpointVersion": "UNKNOWN V1 V2",
    "ExpectedLossWeights": "NONE EXPECTED_SAMPLING REWEIGHTING_UNMATCHED_ANCHORS",
    "HeadConverter": "IDENTITY SIGMOID",
    "InputType": "INPUT_DEFAULT TF_EXAMPLE TF_SEQUENCE_EXAMPLE",
    "InstanceMaskType": "DEFAULT NUMERICAL_MASKS PNG_MASKS",
    "JitterMode": "DEFAULT EXPAND SHRINK EXPAND_SYMMETRIC SHRINK_SYMMETRIC EXPAND_SYMMETRIC_XY SHRINK_SYMMETRIC_XY",
    "LossType": "BOTH CLASSIFICATION LOCALIZATION",
    "Mode": "FAN_IN FAN_OUT FAN_AVG",
    "Op": "CONV=1 FC",
    "ResizeMethod": "AREA=1 BICUBIC BILINEAR NEAREST_NEIGHBOR",
    "ResizeType": "BILINEAR NEAREST_NEIGHBOR BICUBIC AREA",
    "ScoreConverter": "IDENTITY SIGMOID SOFTMAX",
}

_MESSAGES = """\
TrainEvalPipelineConfig: model:DetectionModel train_config: train_input_reader:InputReader eval_config:
  eval_input_reader:InputReader* graph_rewriter:Other!
DetectionModel/model: faster_rcnn: ssd: experimental_model:Other center_net:
Ssd: num_classes:int image_resizer: feature_extractor:SsdFeatureExtractor box_coder: matcher:
  similarity_calculator:RegionSimilarityCalculator encode_background_as_zeros:bool negative_class_weight=1
  box_predictor: anchor_generator: post_processing: normalize_loss_by_num_matches:bool=true
  normalize_loc_loss_by_codesize:bool loss: freeze_batchnorm:bool inplace_batchnorm_update:bool~
  add_background_class:bool=true explicit_background_class:bool use_confidences_as_targets:bool
  implicit_example_weight=1 return_raw_detections_during_predict:bool~ mask_head_config:Other
  weight_regression_loss_by_score:bool
SsdFeatureExtractor: type:string depth_multiplier=1 min_depth:int=16 conv_hyperparams:Hyperparams
  override_base_feature_extractor_hyperparams:bool pad_to_multiple:int=1 use_explicit_padding:bool use_depthwise:bool
  feature_pyramid/fpn: feature_pyramid/bifpn: replace_preprocessor_with_placeholder:bool num_layers:int=6
  spaghettinet_arch_name:string
Fpn: min_level:int=3 max_level:int=7 additional_layer_depth:int=256 use_native_resize_op:bool
Bifpn: min_level:int=3 max_level:int=7 num_iterations:int num_filters:int combine_method:string=fast_attention
BoxCoder/box_coder: faster_rcnn_box_coder: mean_stddev_box_coder:Other square_box_coder:Other keypoint_box_coder:Other
FasterRcnnBoxCoder: y_scale=10 x_scale=10 height_scale=5 width_scale=5
Matcher/matcher: argmax_matcher: bipartite_matcher:Other hungarian_matcher:Other
ArgmaxMatcher: matched_threshold=0.5 unmatched_threshold=0.5 ignore_thresholds:bool
  negatives_lower_than_unmatched:bool=true force_match_for_each_row:bool use_matmul_gather:bool~
RegionSimilarityCalculator/similarity: neg_sq_dist_similarity:Other iou_similarity:Other ioa_similarity:Other
  thresholded_iou_similarity:Other detr_similarity:Other
Other:
BoxPredictor/predictor: convolutional_box_predictor: mask_rcnn_box_predictor: rfcn_box_predictor:Other
  weight_shared_convolutional_box_predictor:
ConvolutionalBoxPredictor: conv_hyperparams:Hyperparams min_depth:int max_depth:int num_layers_before_predictor:int
  use_dropout:bool=true dropout_keep_probability:float~=0.8 kernel_size:int=1 box_code_size:int=4
  apply_sigmoid_to_scores:bool class_prediction_bias_init use_depthwise:bool mask_head:Other
  box_encodings_clip_range:Other
WeightSharedConvolutionalBoxPredictor: conv_hyperparams:Hyperparams num_layers_before_predictor:int depth:int
  kernel_size:int=3 box_code_size:int=4 class_prediction_bias_init use_dropout:bool
  dropout_keep_probability:float~=0.8 share_prediction_tower:bool use_depthwise:bool mask_head:Other
  score_converter:HeadConverter box_encodings_clip_range:Other
MaskRcnnBoxPredictor: fc_hyperparams:Hyperparams use_dropout:bool dropout_keep_probability:float~=0.5
  box_code_size:int=4 conv_hyperparams:Hyperparams predict_instance_masks:bool mask_prediction_conv_depth:int=256
  predict_keypoints:bool mask_height:int=15 mask_width:int=15 mask_prediction_num_conv_layers:int=2
  masks_are_class_agnostic:bool share_box_across_classes:bool convolve_then_upsample_masks:bool
AnchorGenerator/generator: grid_anchor_generator: ssd_anchor_generator: multiscale_anchor_generator:
  flexible_grid_anchor_generator:Other
GridAnchorGenerator: height:int=256 width:int=256 height_stride:int=16 width_stride:int=16 height_offset:int
  width_offset:int scales:float* aspect_ratios:float*
SsdAnchorGenerator: num_layers:int=6 min_scale=0.2 max_scale=0.95 scales:float* aspect_ratios:float*
  interpolated_scale_aspect_ratio=1 reduce_boxes_in_lowest_layer:bool=true base_anchor_height=1 base_anchor_width=1
  height_stride:int* width_stride:int* height_offset:int* width_offset:int*
MultiscaleAnchorGenerator: min_level:int=3 max_level:int=7 anchor_scale=4 aspect_ratios:float* scales_per_octave:int=2
  normalize_coordinates:bool=true
PostProcessing: batch_non_max_suppression: score_converter: logit_scale=1 calibration_config:Other
BatchNonMaxSuppression: score_threshold iou_threshold=0.6 max_detections_per_class:int=100
  max_total_detections:int=100 use_static_shapes:bool~ use_class_agnostic_nms:bool max_classes_per_detection:int=1
  soft_nms_sigma use_partitioned_nms:bool~ use_combined_nms:bool change_coordinate_frame:bool=true use_hard_nms:bool~
  use_cpu_nms:bool~
FasterRcnn: number_of_stages:int=2 num_classes:int image_resizer: feature_extractor:FasterRcnnFeatureExtractor
  first_stage_anchor_generator:AnchorGenerator first_stage_atrous_rate:int=1
  first_stage_box_predictor_conv_hyperparams:Hyperparams first_stage_box_predictor_kernel_size:int=3
  first_stage_box_predictor_depth:int=512 first_stage_minibatch_size:int=256 first_stage_positive_balance_fraction=0.5
  first_stage_nms_score_threshold first_stage_nms_iou_threshold=0.7 first_stage_max_proposals:int=300
  first_stage_localization_loss_weight=1 first_stage_objectness_loss_weight=1 initial_crop_size:int
  maxpool_kernel_size:int maxpool_stride:int second_stage_box_predictor:BoxPredictor second_stage_batch_size:int=64
  second_stage_balance_fraction=0.25 second_stage_post_processing:PostProcessing
  second_stage_localization_loss_weight=1 second_stage_classification_loss_weight=1
  second_stage_mask_prediction_loss_weight=1 hard_example_miner: second_stage_classification_loss:ClassificationLoss
  inplace_batchnorm_update:bool~ use_matmul_crop_and_resize:bool~ clip_anchors_to_image:bool
  use_matmul_gather_in_matcher:bool~ use_static_balanced_label_sampler:bool~ use_static_shapes:bool~
  resize_masks:bool=true use_static_shapes_for_eval:bool~ use_partitioned_nms_in_first_stage:bool~=true
  return_raw_detections_during_predict:bool~ use_combined_nms_in_first_stage:bool output_final_box_features:bool~
  output_final_box_rpn_features:bool~ context_config:Other
FasterRcnnFeatureExtractor: type:string first_stage_features_stride:int=16 batch_norm_trainable:bool
  conv_hyperparams:Hyperparams override_base_feature_extractor_hyperparams:bool pad_to_multiple:int=32 fpn:
CenterNet: num_classes:int feature_extractor:CenterNetFeatureExtractor image_resizer: use_depthwise:bool
  compute_heatmap_sparse:bool~ object_detection_task: object_center_params: keypoint_label_map_path:string
  keypoint_estimation_task:* mask_estimation_task: densepose_estimation_task:Other track_estimation_task:Other
  temporal_offset_task:Other deepmac_mask_estimation:Other post_processing:
CenterNetFeatureExtractor: type:string channel_means:float* channel_stds:float* bgr_ordering:bool use_depthwise:bool
  depth_multiplier=1 use_separable_conv:bool upsampling_interpolation:string=nearest
PredictionHeadParams: num_filters:int* kernel_sizes:int*
ObjectDetectionTask: task_loss_weight=1 offset_loss_weight=1 scale_loss_weight=0.1 localization_loss:
  scale_head_params:PredictionHeadParams offset_head_params:PredictionHeadParams
ObjectCenterParams: object_center_loss_weight=1 classification_loss: heatmap_bias_init=-2.19 min_box_overlap_iou=0.7
  max_box_predictions:int=100 use_labeled_classes:bool keypoint_weights_for_center:float*
  center_head_params:PredictionHeadParams peak_max_pool_kernel_size:int=3
LabelValue: key:string value
KeypointEstimationTask: task_name:string task_loss_weight=1 loss: keypoint_class_name:string
  keypoint_label_to_std:LabelValue* keypoint_regression_loss_weight=1 keypoint_heatmap_loss_weight=1
  keypoint_offset_loss_weight=1 heatmap_bias_init=-2.19 keypoint_candidate_score_threshold=0.1
  num_candidates_per_keypoint:int=100 peak_max_pool_kernel_size:int=3 unmatched_keypoint_score=0.1 box_scale=1.2
  candidate_search_scale=0.3 candidate_ranking_mode:string=min_distance score_distance_offset=1
  score_distance_multiplier=0.1 std_dev_multiplier=1 offset_peak_radius:int per_keypoint_offset:bool
  predict_depth:bool per_keypoint_depth:bool keypoint_depth_loss_weight=1 clip_out_of_frame_keypoints:bool
  rescore_instances:bool rescoring_threshold gaussian_denom_ratio=0.1 argmax_postprocessing:bool
  heatmap_head_params:PredictionHeadParams offset_head_params:PredictionHeadParams
  regress_head_params:PredictionHeadParams
MaskEstimationTask: task_loss_weight=1 classification_loss: mask_height:int=256 mask_width:int=256 score_threshold=0.5
  heatmap_bias_init=-2.19 mask_head_params:PredictionHeadParams
Hyperparams: op:~ regularizer: initializer: activation:=RELU normalizer/batch_norm: normalizer/group_norm:Other
  normalizer/sync_batch_norm:BatchNorm regularize_depthwise:bool! force_use_bias:bool~
Regularizer/regularizer: l1_regularizer:WeightOfNorm l2_regularizer:WeightOfNorm
WeightOfNorm: weight=1
Initializer/initializer: truncated_normal_initializer:Normal random_normal_initializer:Normal
  variance_scaling_initializer: keras_initializer_by_name:string
Normal: mean stddev=1
VarianceScalingInitializer: factor=2 uniform:bool mode:
BatchNorm: decay=0.999 center:bool=true scale:bool epsilon=0.001 train:bool=true
Loss: localization_loss: classification_loss: hard_example_miner: classification_weight=1 localization_weight=1
  random_example_sampler:Other equalization_loss:Other! expected_loss_weights: min_num_negative_samples:float~
  desired_negative_sampling_ratio:float~=3
LocalizationLoss/loss: weighted_l2:DeprecatedLoss weighted_smooth_l1: weighted_iou:Other l1_localization_loss:Other
  weighted_giou:Other
DeprecatedLoss: anchorwise_output:bool~
WeightedSmoothL1: anchorwise_output:bool~ delta=1
ClassificationLoss/loss: weighted_sigmoid:DeprecatedLoss weighted_softmax:Softmax weighted_logits_softmax:Softmax
  bootstrapped_sigmoid: weighted_sigmoid_focal: penalty_reduced_logistic_focal_loss:
  weighted_dice_classification_loss:Other
Softmax: anchorwise_output:bool~ logit_scale=1
BootstrappedSigmoid: anchorwise_output:bool~ alpha hard_bootstrap:bool
WeightedSigmoidFocal: anchorwise_output:bool~ gamma=2 alpha
PenaltyReducedLogisticFocalLoss: alpha beta
HardExampleMiner: num_hard_examples:int=64 iou_threshold=0.7 loss_type: max_negatives_per_positive:int
  min_negatives_per_image:int
ImageResizer/resizer: keep_aspect_ratio_resizer: fixed_shape_resizer: identity_resizer:Other
  conditional_shape_resizer:Other pad_to_multiple_resizer:Other
KeepAspectRatioResizer: min_dimension:int=600 max_dimension:int=1024 resize_method:ResizeType
  pad_to_max_dimension:bool convert_to_grayscale:bool per_channel_pad_value:float*
FixedShapeResizer: height:int=300 width:int=300 resize_method:ResizeType convert_to_grayscale:bool
InputReader: name:string~ label_map_path:string shuffle:bool=true shuffle_buffer_size:int~=2048
  filenames_shuffle_buffer_size:int~=100 num_epochs:int sample_1_of_n_examples:int=1 num_readers:int~=64
  num_parallel_batches:int~=8 num_prefetch_batches:int~=2 queue_capacity:int~=2000 min_after_dequeue:int~=1000
  read_block_length:int~=32 prefetch_size:int~=512 num_parallel_map_calls:int~=64 num_additional_channels:int
  num_keypoints:int~ keypoint_type_weight:float* max_number_of_boxes:int=100 load_multiclass_scores:bool
  load_context_features:bool load_context_image_ids:bool load_instance_masks:bool~
  mask_type:InstanceMaskType~=NUMERICAL_MASKS load_dense_pose:bool load_track_id:bool
  load_keypoint_depth_features:bool use_display_name:bool~ include_source_id:bool~ input_type:=TF_EXAMPLE
  use_keypoint_label_map:bool~ expand_labels_hierarchy:bool drop_remainder:bool~=true frame_index:int=-1
  reader/tf_record_input_reader: reader/external_input_reader:Other
TfRecordInputReader: input_path:string*
TrainConfig: batch_size:int=32 data_augmentation_options:PreprocessingStep* sync_replicas:bool!
  keep_checkpoint_every_n_hours:float!=10000 optimizer: gradient_clipping_by_norm fine_tune_checkpoint:string
  fine_tune_checkpoint_type:string fine_tune_checkpoint_version:CheckpointVersion=V1 from_detection_checkpoint:bool
  load_all_detection_checkpoint_vars:bool run_fine_tune_checkpoint_dummy_computation:bool~=true num_steps:int
  startup_delay_steps:float!=15 bias_grad_multiplier:float! update_trainable_variables:string*!
  freeze_variables:string*! replicas_to_aggregate:int!=1 batch_queue_capacity:int!=150 num_batch_queue_threads:int!=8
  prefetch_queue_capacity:int!=5 merge_multiple_label_boxes:bool use_multiclass_scores:bool
  add_regularization_loss:bool=true max_number_of_boxes:int!=100 unpad_groundtruth_tensors:bool~=true
  retain_original_images:bool~ use_bfloat16:bool summarize_gradients:bool!
Optimizer: optimizer/rms_prop_optimizer: optimizer/momentum_optimizer: optimizer/adam_optimizer:
  use_moving_average:bool=true moving_average_decay=0.9999
RmsPropOptimizer: learning_rate: momentum_optimizer_value=0.9 decay=0.9 epsilon=1
MomentumOptimizer: learning_rate: momentum_optimizer_value=0.9
AdamOptimizer: learning_rate: epsilon=1e-8
LearningRate/rate: constant_learning_rate: exponential_decay_learning_rate: manual_step_learning_rate:
  cosine_decay_learning_rate:
ConstantLearningRate: learning_rate=0.002
ExponentialDecayLearningRate: initial_learning_rate=0.002 decay_steps:int=4000000 decay_factor=0.95
  staircase:bool=true burnin_learning_rate burnin_steps:int min_learning_rate
ManualStepLearningRate: initial_learning_rate=0.002 schedule:* warmup:bool
Schedule: step:int learning_rate=0.002
CosineDecayLearningRate: learning_rate_base=0.002 total_steps:int=4000000 warmup_learning_rate=0.0002
  warmup_steps:int=10000 hold_base_rate_steps:int
EvalConfig: batch_size:int=1 num_visualizations:int=10 num_examples:int!=5000 eval_interval_secs:int!=300
  max_evals:int! save_graph:bool! visualization_export_dir:string! eval_master:string! metrics_set:string*
  parameterized_metric:* export_path:string ignore_groundtruth:bool! use_moving_averages:bool
  eval_instance_masks:bool! min_score_threshold=0.5 max_num_boxes_to_visualize:int=20 skip_scores:bool!
  skip_labels:bool! visualize_groundtruth_boxes:bool! groundtruth_box_visualization_color:string!=black
  keep_image_id_for_visualization_export:bool! retain_original_images:bool~=true include_metrics_per_category:bool~
  all_metrics_per_category:bool~ super_categories:* recall_lower_bound recall_upper_bound=1
  retain_original_image_additional_channels:bool~ force_no_resize:bool keypoint_edge:*
  skip_predictions_for_unlabeled_class:bool image_classes_field_map_empty_to_ones:bool=true
SuperCategories: key:string value:string
KeypointEdge: start:int end:int
ParameterizedMetric: metric/coco_keypoint_metrics:
CocoKeypointMetrics: class_label:string keypoint_label_to_sigmas:LabelValue*
PreprocessingStep/step: normalize_image: random_horizontal_flip:Flip random_pixel_value_scale: random_image_scale:
  random_rgb_to_gray: random_adjust_brightness: random_adjust_contrast:LinearDeltas random_adjust_hue:
  random_adjust_saturation:LinearDeltas random_distort_color: random_jitter_boxes: random_crop_image:
  random_pad_image: random_crop_pad_image: random_crop_to_aspect_ratio: random_black_patches: random_resize_method:
  scale_boxes_to_pixel_coordinates:Other resize_image: subtract_channel_mean: ssd_random_crop: ssd_random_crop_pad:
  ssd_random_crop_fixed_aspect_ratio: ssd_random_crop_pad_fixed_aspect_ratio: random_vertical_flip:Flip
  random_rotation90: rgb_to_gray:Other convert_class_logits_to_softmax: random_absolute_pad_image:
  random_self_concat_image: autoaugment_image: drop_label_probabilistically: remap_labels: random_jpeg_quality:
  random_downscale_to_target_pixels: random_patch_gaussian: random_square_crop_by_scale:
  random_scale_crop_and_pad_to_square: adjust_gamma:
NormalizeImage: original_minval original_maxval target_minval target_maxval=1
Flip: keypoint_flip_permutation:int* probability=0.5
RandomPixelValueScale: minval=0.9 maxval=1.1
RandomImageScale: min_scale_ratio=0.5 max_scale_ratio=2
RandomRgbToGray: probability=0.1
RandomAdjustBrightness: max_delta=0.2
LinearDeltas: min_delta=0.8 max_delta=1.25
RandomAdjustHue: max_delta=0.02
RandomDistortColor: color_ordering:int
RandomJitterBoxes: ratio=0.05 jitter_mode:
RandomCropImage: min_object_covered=1 min_aspect_ratio=0.75 max_aspect_ratio=1.33 min_area=0.1 max_area=1
  overlap_thresh=0.3 clip_boxes:bool=true random_coef
RandomPadImage: min_image_height:int min_image_width:int max_image_height:int max_image_width:int pad_color:float*
RandomAbsolutePadImage: max_height_padding:int max_width_padding:int pad_color:float*
RandomCropPadImage: min_object_covered=1 min_aspect_ratio=0.75 max_aspect_ratio=1.33 min_area=0.1 max_area=1
  overlap_thresh=0.3 clip_boxes:bool=true random_coef min_padded_size_ratio:float* max_padded_size_ratio:float*
  pad_color:float*
RandomCropToAspectRatio: aspect_ratio=1 overlap_thresh=0.3 clip_boxes:bool=true
RandomBlackPatches: max_black_patches:int=10 probability=0.5 size_to_image_ratio=0.1
RandomResizeMethod: target_height:int target_width:int
ResizeImage: new_height:int new_width:int method:ResizeMethod=BILINEAR
SubtractChannelMean: means:float*
SsdRandomCrop: operations:SsdRandomCropOperation*
SsdRandomCropOperation: min_object_covered min_area max_area overlap_thresh clip_boxes:bool=true random_coef
  min_aspect_ratio max_aspect_ratio
SsdRandomCropPad: operations:SsdRandomCropPadOperation*
SsdRandomCropPadOperation: min_object_covered min_area max_area overlap_thresh clip_boxes:bool=true random_coef
  min_aspect_ratio max_aspect_ratio min_padded_size_ratio:float* max_padded_size_ratio:float* pad_color_r pad_color_g
  pad_color_b
SsdRandomCropFixedAspectRatio: operations:SsdRandomCropFixedOperation* aspect_ratio=1
SsdRandomCropFixedOperation: min_object_covered min_area max_area overlap_thresh clip_boxes:bool=true random_coef
SsdRandomCropPadFixedAspectRatio: operations:SsdRandomCropOperation* aspect_ratio=1 min_padded_size_ratio:float*
  max_padded_size_ratio:float*
RandomRotation90: keypoint_rot_permutation:int* probability=0.5
ConvertClassLogitsToSoftmax: temperature=1
RandomSelfConcatImage: concat_vertical_probability=0.1 concat_horizontal_probability=0.1
AutoaugmentImage: policy_name:string=v0
DropLabelProbabilistically: label:int drop_probability=1
RemapLabels: original_labels:int* new_label:int
RandomJpegQuality: random_coef min_jpeg_quality:int max_jpeg_quality:int=100
RandomDownscaleToTargetPixels: random_coef min_target_pixels:int=300000 max_target_pixels:int=500000
RandomPatchGaussian: random_coef min_patch_size:int=1 max_patch_size:int=250 min_gaussian_stddev max_gaussian_stddev=1
RandomSquareCropByScale: max_border:int=128 scale_min=0.6 scale_max=1.3 num_scales:int=8
RandomScaleCropAndPadToSquare: output_size:int=512 scale_min=0.1 scale_max=2
AdjustGamma: gamma=1 gain=1
"""
_PACKAGE = "object_detection.protos"
IGNORED_THERE, NO_EFFECT = "!", "~"
_SCALARS = {"int": "TYPE_INT32", "bool": "TYPE_BOOL", "string": "TYPE_STRING"}
_SCALARS |= {"float": "TYPE_DOUBLE"}  # so that 0.1 stays 0.1
_FIELD = re.compile(r"(?:(\w+)/)?(\w+)(:(\w*)(\*?)([!~]?))?(?:=(\S+))?")


class Field(NamedTuple):
    """A field of a message."""

    name: str
    kind: str
    oneof: str
    repeated: bool
    mark: str
    default: str


def _field(text: str, oneof: str) -> Field:
    match = _FIELD.fullmatch(text)
    assert match is not None, text
    own_oneof, name, has_kind, kind, repeated, mark, default = match.groups(default="")
    kind = (kind or "".join(map(str.capitalize, name.split("_")))) if has_kind else "float"
    return Field(name, kind, own_oneof or oneof, bool(repeated), mark, default)


MESSAGES: dict[str, list[Field]] = {}
for _text in re.split(r"\n(?! )", _MESSAGES.strip()):
    _head, _, _fields = _text.partition(":")
    _name, _, _oneof = _head.partition("/")
    MESSAGES[_name] = [_field(_one, _oneof) for _one in _fields.split()]


@functools.cache
def marks() -> dict[tuple[str, str], str]:
    """Returns `IGNORED_THERE` or `NO_EFFECT` by message and field, for marked fields."""
    return {(message, field.name): field.mark for message, fields in MESSAGES.items() for field in fields if field.mark}


@functools.cache
def pipeline_class() -> Any:
    """Returns the class of protocol buffer messages `TrainEvalPipelineConfig`."""
    file = descriptor_pb2.FileDescriptorProto(name="pipeline.proto", package=_PACKAGE, syntax="proto2")
    for enum, values in ENUMS.items():  # each in a message, as values of enums have to differ in a scope
        described = file.message_type.add(name=f"{enum}Enum").enum_type.add(name=enum)
        number = 0
        for value in values.split():
            name, _, start = value.partition("=")
            number = int(start or number)
            described.value.add(name=name, number=number)
            number += 1
    for message, fields in MESSAGES.items():
        _add_message(file, message, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.TrainEvalPipelineConfig"))


def _add_message(file: Any, message: str, fields: Sequence[Field]) -> None:
    described = file.message_type.add(name=message)
    described.extension_range.add(start=len(fields) + 1, end=len(fields) + 2)  # so that extensions are unknown fields
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
    for oneof in oneofs:
        described.oneof_decl.add(name=oneof)
    for number, (name, kind, oneof, repeated, _, default) in enumerate(fields, 1):
        field = described.field.add(name=name, number=number, default_value=default or None)
        field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        if kind in _SCALARS:
            field.type = getattr(field, _SCALARS[kind])
        else:
            field.type_name = f".{_PACKAGE}.{kind}Enum.{kind}" if kind in ENUMS else f".{_PACKAGE}.{kind}"
        if oneof:
            field.oneof_index = oneofs.index(oneof)
