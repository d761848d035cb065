"""A loopback Vertex AI: the REST surface of pipelines, schedules and models.

It runs in the storage emulator's process, which answers for all of Google's hosts.  Requests are
parsed into the published messages of `google.cloud.aiplatform_v1`; an unknown field is refused.
"""
