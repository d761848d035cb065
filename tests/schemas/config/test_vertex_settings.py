"""The sections `run.vertex` and `push.vertex`."""

import re

import pytest

from schemas.config.config_io import load_config
from schemas.errors import ConfigError

REMOTE = ("run.root=gs://bucket/run", "run.vertex.project=p", "push.vertex.model_registry=true")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["run.vertex.network=vpc"], "run.vertex.network = 'vpc': String should match pattern"),
        (
            ["run.vertex.network=projects/1/global/networks/vpc", "run.vertex.network_attachment=a"],
            "network and network_attachment are exclusive; remove one",
        ),
        (["run.vertex.reserved_ip_ranges=[a]"], "does nothing without network"),
        (["run.vertex.encryption_key=key"], "run.vertex.encryption_key = 'key': String should match pattern"),
        (
            ["run.vertex.encryption_key=projects/p/locations/us/keyRings/r/cryptoKeys/k"],
            "encryption_key is in us; Vertex requires a key in region = us-central1",
        ),
        (["run.vertex.failure_policy=never"], "run.vertex.failure_policy"),
        (["run.vertex.region=us central1"], "run.vertex.region"),
        (["run.vertex.labels={'': x}"], "label '': a key starts with a lower-case letter"),
        (["run.vertex.labels={1a: x}"], "label '1a': a key starts with a lower-case letter"),
        ([f"run.vertex.labels={{{'a' * 64}: x}}"], "has at most 63 lower-case letters"),
        ([f"run.vertex.labels={{a: {'x' * 64}}}"], "a value has at most 63 lower-case letters"),
        (["run.vertex.labels={vertex-ai-pipelines-run-billing-id: x}"], "is reserved by Vertex AI; remove it"),
        ([f"run.vertex.labels={{{', '.join(f'a{i}: x' for i in range(65))}}}"], "65 labels; a resource has at most 64"),
        (["push.vertex.image=i"], "image = i does nothing without model_registry"),
        ([*REMOTE, "push.vertex.port=80"], "port = 80 does nothing without image"),
        ([*REMOTE, "push.vertex.version_aliases=[Big]"], "push.vertex.version_aliases.0 = 'Big'"),
        ([*REMOTE, "push.vertex.version_aliases=[default]"], "each new version always gets `default`; remove it"),
        ([*REMOTE, "push.vertex.parent_model=a/b"], "push.vertex.parent_model = 'a/b'"),
        (
            [*REMOTE, f"push.vertex.labels={{{', '.join(f'a{i}: x' for i in range(65))}}}"],
            "65 labels; a resource has at most 64",
        ),
        ([*REMOTE, "run.vertex.project=null"], "push.vertex.model_registry requires a project; set run.vertex.project"),
        (
            [*REMOTE, "push.directory=/srv/models"],
            "Vertex AI reads models from Cloud Storage, but push.directory = /srv/models is elsewhere",
        ),
    ],
)
def test_what_does_not_fit_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, assignments)


def test_labels_of_other_scripts() -> None:
    labels = {"équipe": "видение", "a-b_c1": ""}
    config = load_config(None, [f"run.vertex.labels={labels}"])
    assert config.run.vertex.labels == labels


def test_a_local_run_root_with_a_remote_push_folder() -> None:
    registry = ["push.vertex.model_registry=true", "run.vertex.project=p"]
    config = load_config(None, [*registry, "push.directory=gs://bucket/serving"])
    assert config.push.vertex.model_registry
