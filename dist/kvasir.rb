# SPDX-License-Identifier: Apache-2.0
#
# Homebrew's formula, for Linux. Never run here: no machine with Homebrew was at hand. A release fills in
# URL and SHA256 of its source archive; then: brew install --formula dist/kvasir.rb
class Kvasir < Formula
  desc "Language models with a KV cache that is quantized end to end"
  homepage "HOMEPAGE"
  url "URL"
  sha256 "SHA256"
  license "Apache-2.0"
  version "0.1.0"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "node" => :build # npm, for the libraries of the server's page
  depends_on "pkgconf" => :build
  depends_on "curl"
  depends_on "hiredis"
  depends_on "jansson"
  depends_on "libarchive"
  depends_on "libedit"
  depends_on "libseccomp"
  depends_on "libsodium"
  depends_on :linux
  depends_on "pcre2"
  depends_on "utf8proc"
  depends_on "xxhash"

  def install
    system "npm", "install", "--no-save", "markdown-it@13", "highlight.js@10", "dompurify@2", "katex@0.16"
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DBUILD_TESTING=OFF", *std_cmake_args,
                    "-DCMAKE_BUILD_TYPE=Release", "-DKVASIR_PAGE_NODE=#{buildpath}/node_modules",
                    "-DKVASIR_PAGE_KATEX=#{buildpath}/node_modules/katex/dist/katex.min.js"
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kvasir --version")
    assert_match "No such file", shell_output("#{bin}/kvasir generate -m /nowhere -p x 2>&1", 1)
  end
end
