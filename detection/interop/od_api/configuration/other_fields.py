"""What is known of a pipeline.config beyond the fields that are read: oneofs, and fields without an equivalent here."""

from typing import Any

from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of oneofs; a `loss` is one of classes or of boxes.
ONEOFS = {
    oneof: _names(fields)
    for oneof, fields in {
        "box_coder": "faster_rcnn_box_coder mean_stddev_box_coder square_box_coder keypoint_box_coder",
        "generator": """grid_anchor_generator ssd_anchor_generator multiscale_anchor_generator
            flexible_grid_anchor_generator""",
        "loss": """weighted_sigmoid weighted_softmax weighted_logits_softmax bootstrapped_sigmoid
            weighted_sigmoid_focal penalty_reduced_logistic_focal_loss weighted_dice_classification_loss
            weighted_l2 weighted_smooth_l1 weighted_iou l1_localization_loss weighted_giou""",
        "matcher": "argmax_matcher bipartite_matcher hungarian_matcher",
        "model": "faster_rcnn ssd experimental_model center_net",
        "normalizer": "batch_norm group_norm sync_batch_norm",
        "optimizer": "rms_prop_optimizer momentum_optimizer adam_optimizer",
        "predictor": """convolutional_box_predictor mask_rcnn_box_predictor rfcn_box_predictor
            weight_shared_convolutional_box_predictor""",
        "rate": """constant_learning_rate exponential_decay_learning_rate manual_step_learning_rate
            cosine_decay_learning_rate""",
        "reader": "tf_record_input_reader external_input_reader",
        "regularizer": "l1_regularizer l2_regularizer",
        "resizer": """keep_aspect_ratio_resizer fixed_shape_resizer identity_resizer conditional_shape_resizer
            pad_to_multiple_resizer""",
        "similarity": """neg_sq_dist_similarity iou_similarity ioa_similarity thresholded_iou_similarity
            detr_similarity""",
        "step": " ".join((*STEPS, *REFUSED_STEPS)),
    }.items()
}
# The original's TF2 trainer ignores them.
IGNORED = _names(
    """batch_queue_capacity bias_grad_multiplier equalization_loss eval_instance_masks eval_interval_secs eval_master
    freeze_variables graph_rewriter groundtruth_box_visualization_color ignore_groundtruth
    keep_checkpoint_every_n_hours keep_image_id_for_visualization_export max_evals max_number_of_boxes
    num_batch_queue_threads num_examples prefetch_queue_capacity regularize_depthwise replicas_to_aggregate save_graph
    skip_labels skip_scores startup_delay_steps summarize_gradients sync_replicas update_trainable_variables
    visualization_export_dir visualize_groundtruth_boxes"""
)
# They do not change the original's results.
NO_EFFECT = _names(
    """all_metrics_per_category anchorwise_output compute_heatmap_sparse desired_negative_sampling_ratio drop_remainder
    dropout_keep_probability filenames_shuffle_buffer_size force_use_bias include_metrics_per_category include_source_id
    inplace_batchnorm_update load_instance_masks mask_type min_after_dequeue min_num_negative_samples name num_keypoints
    num_parallel_batches num_parallel_map_calls num_prefetch_batches num_readers op output_final_box_features
    output_final_box_rpn_features prefetch_size queue_capacity read_block_length
    retain_original_image_additional_channels retain_original_images return_raw_detections_during_predict
    run_fine_tune_checkpoint_dummy_computation shuffle_buffer_size unpad_groundtruth_tensors use_cpu_nms
    use_display_name use_hard_nms use_keypoint_label_map use_matmul_crop_and_resize use_matmul_gather
    use_matmul_gather_in_matcher use_partitioned_nms use_partitioned_nms_in_first_stage
    use_static_balanced_label_sampler use_static_shapes use_static_shapes_for_eval"""
)
# Fields of messages without an effect.
INSIDE = _names(
    """truncated_normal_initializer random_normal_initializer variance_scaling_initializer keras_initializer_by_name
    mean stddev factor uniform mode decay scale epsilon start end quantization delay activation_bits weight_bits"""
)
# Only their defaults are supported; None: a message or a list, without a default.
UNSUPPORTED: dict[str, Any] = {
    name: default
    for default, names in (
        (
            None,
            """batch_norm bifpn box_encodings_clip_range calibration_config context_config conv_hyperparams
            deepmac_mask_estimation densepose_estimation_task external_input_reader fpn group_norm
            hard_example_miner height_offset height_stride keypoint_type_weight keypoint_weights_for_center
            mask_head mask_head_config per_channel_pad_value post_processing random_example_sampler scales
            second_stage_classification_loss super_categories sync_batch_norm temporal_offset_task
            tf_record_input_reader track_estimation_task width_offset width_stride""",
        ),
        (
            False,
            """apply_sigmoid_to_scores convert_to_grayscale convolve_then_upsample_masks expand_labels_hierarchy
            explicit_background_class force_no_resize ignore_thresholds load_all_detection_checkpoint_vars
            load_context_features load_context_image_ids load_dense_pose load_keypoint_depth_features
            load_multiclass_scores load_track_id masks_are_class_agnostic merge_multiple_label_boxes
            override_base_feature_extractor_hyperparams predict_keypoints replace_preprocessor_with_placeholder
            skip_predictions_for_unlabeled_class use_combined_nms use_combined_nms_in_first_stage
            use_confidences_as_targets use_depthwise use_explicit_padding use_multiclass_scores
            use_native_resize_op use_separable_conv weight_regression_loss_by_score""",
        ),
        (
            1,
            """base_anchor_height base_anchor_width classification_weight depth_multiplier first_stage_atrous_rate
            implicit_example_weight localization_weight negative_class_weight recall_upper_bound
            sample_1_of_n_examples second_stage_mask_prediction_loss_weight""",
        ),
        (
            True,
            """center change_coordinate_frame image_classes_field_map_empty_to_ones negatives_lower_than_unmatched
            normalize_coordinates resize_masks train""",
        ),
        ("", "export_path keypoint_label_map_path label_map_path spaghettinet_arch_name"),
        (16, "first_stage_features_stride min_depth"),
        (15, "mask_height mask_width"),
        (0, "num_additional_channels recall_lower_bound"),
        (4, "box_code_size"),
        ("NONE", "expected_loss_weights"),
        (3, "first_stage_box_predictor_kernel_size"),
        (-1, "frame_index"),
        ("TF_EXAMPLE", "input_type"),
        (256, "mask_prediction_conv_depth"),
        (2, "mask_prediction_num_conv_layers"),
        (0.9999, "moving_average_decay"),
        (6, "num_layers"),
        ("BILINEAR", "resize_method"),
        ("nearest", "upsampling_interpolation"),
    )
    for name in names.split()
}
