# A formula for Homebrew on Linux, which builds from the sources. packaging/release fills in the address (`repository` in Cargo.toml),
# the version and the sum, and puts the result among the files of the release.
class Diskferry < Formula
  desc "Serve, copy, convert and inspect virtual disks"
  homepage "@ADDRESS@"
  url "@ADDRESS@/releases/download/v@VERSION@/diskferry-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/cli")
    system bin/"diskferry", "man", buildpath/"man"
    man1.install Dir["man/*.1"]
    generate_completions_from_executable(bin/"diskferry", "completions", shells: [:bash, :zsh, :fish])
  end

  test do
    system bin/"diskferry", "copy", "pattern:1M", "disk.raw"
    assert_equal 1_048_576, (testpath/"disk.raw").size
  end
end
