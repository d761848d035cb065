#!/bin/sh
# Installs all that Cocoflow needs, at the versions and hashes of requirements.lock, into a virtual environment.
#
#     ./environment.sh VENV             the dependencies only
#     ./environment.sh VENV .           and this folder, editable: `make env`
#     ./environment.sh VENV WHEEL       and a built wheel: the container image
#     ./environment.sh --gpu VENV ...   with the CUDA libraries that TensorFlow needs for GPUs, 3 GB: docs/gpu.md
#
# PYTHON is the interpreter (default: python3); an environment of another version of Python is made anew.  UV is the
# path of uv (default: the installed one; without one, pip installs it into .uv).
set -eu
cd "$(dirname "$0")"

gpu=
if [ "$1" = --gpu ]; then
    gpu=1
    shift
fi
venv=$(realpath -m "$1")
package=${2:-}
python=${PYTHON:-python3}
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }
version=$(version_of "$python")
case $version in
3.11 | 3.12 | 3.13) ;;
*)
    echo "error: $python is ${version:+Python }${version:-no Python}, but Cocoflow needs Python 3.11, 3.12 or 3.13." >&2
    echo "Install one of them, and name it: make env PYTHON=python3.11" >&2
    exit 2
    ;;
esac
libc=$("$python" -c 'import platform; print(platform.libc_ver()[1])')
case $version:$libc in
3.11:* | *:) ;;
*)
    if [ "${libc#2.}" -lt 39 ]; then
        echo "error: on Python $version, TFX needs glibc 2.39 (Debian 13), and this system has $libc." >&2
        echo "Use Python 3.11: make env PYTHON=python3.11" >&2
        exit 2
    fi
    ;;
esac
uv=${UV:-$(command -v uv || echo .uv/bin/uv)}

if [ "$uv" = .uv/bin/uv ] && [ ! -x "$uv" ]; then
    "$python" -m venv .uv
    .uv/bin/pip install --quiet --disable-pip-version-check uv
fi
if [ -e "$venv/pyvenv.cfg" ] && [ "$(version_of "$venv/bin/python")" != "$version" ]; then
    echo "$venv has no Python $version: it is made anew" >&2
    rm -rf "$venv"
fi
[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"

# The packages to install: the extra `gpu` adds nothing to the lock but packages named nvidia-*.
packages() {
    if [ "$gpu" ]; then cat requirements.lock; else sed '/^nvidia-/,/[^\\]$/d' requirements.lock; fi
}

export VIRTUAL_ENV="$venv"
# uv trusts its own list of certificate authorities; a mirror's may be known to the system alone.
packages | "$uv" pip sync --quiet --require-hashes - ||
    packages | UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 "$uv" pip sync --quiet --require-hashes -
case $package in
"") ;;
*.whl) "$uv" pip install --quiet --no-deps --offline "$package" ;;
*) "$uv" pip install --quiet --no-deps --no-build-isolation --editable "$package" ;;
esac
cp requirements.lock "$venv/"  # `doctor` compares with it where there is no source tree
start="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/cocoflow_gpu.pth"
rm -f "$start"
if [ "$gpu" ] && [ "$package" ]; then
    echo 'import pipelines.cuda_libraries; pipelines.cuda_libraries.make_loadable()' >"$start"
fi
