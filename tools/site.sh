#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# site.sh: the documentation as a site, in build/site (mkdocs.yml). The pages are those of the
# repository, laid out as in it, so that links between them hold; so are files that they link to.
# A broken link, or a page that the navigation lacks, is an error. PyPI's mkdocs comes into
# build-site/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build-site/venv pages=build-site/pages
if [ ! -x $venv/bin/mkdocs ]; then
    python3 -m venv $venv
    $venv/bin/pip install -q --disable-pip-version-check mkdocs==1.6.1
fi
rm -rf $pages build/site
mkdir -p $pages
git ls-files -z --cached --others --exclude-standard -- '*.md' docs dist/Dockerfile \
    dist/kvasir.service 'bench/results/speed-*' ':!tests' ':!docs/man' |
    xargs -0 cp --parents -t $pages
$venv/bin/mkdocs build --quiet
! grep -rnoE '(src|href)="https?://[^"]*\.(js|css|woff2?)"' build/site ||
    { echo "site: a page needs the network" >&2 && exit 1; }
echo "build/site/index.html: $(find build/site -name '*.html' | wc -l) pages"
