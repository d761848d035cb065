#!/bin/sh
# Installs all that Cocoflow needs, at the versions and hashes of requirements.lock, into a virtual environment.
#
#     ./environment.sh VENV             the dependencies only
#     ./environment.sh VENV .           and this folder, editable: `make env`
#     ./environment.sh VENV WHEEL       and a built wheel: the container image
#
# PYTHON is the interpreter (default: python3), UV the path of uv (default: the installed one; without one, pip
# installs it into .uv).
set -eu
cd "$(dirname "$0")"

venv=$(realpath -m "$1")
package=${2:-}
python=${PYTHON:-python3}
uv=${UV:-$(command -v uv || echo .uv/bin/uv)}

if [ "$uv" = .uv/bin/uv ] && [ ! -x "$uv" ]; then
    "$python" -m venv .uv
    .uv/bin/pip install --quiet --disable-pip-version-check uv
fi
[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"

export VIRTUAL_ENV="$venv"
# uv trusts its own list of certificate authorities; a mirror's may be known to the system alone.
"$uv" pip sync --quiet --require-hashes requirements.lock ||
    UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 "$uv" pip sync --quiet --require-hashes requirements.lock
case $package in
"") ;;
*.whl) "$uv" pip install --quiet --no-deps --offline "$package" ;;
*) "$uv" pip install --quiet --no-deps --no-build-isolation --editable "$package" ;;
esac
