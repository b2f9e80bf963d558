# `nix build` in a checkout, or of the project's address, builds the program with its manual pages and completions;
# `nix run . -- copy …` runs it.
{
  description = "Serve, copy, convert and inspect virtual disks";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forAll = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      version = (builtins.fromTOML (builtins.readFile ./Cargo.toml)).workspace.package.version;
    in
    {
      packages = forAll (pkgs: rec {
        default = diskferry;
        diskferry = pkgs.rustPlatform.buildRustPackage {
          pname = "diskferry";
          inherit version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "-p" "diskferry" ];
          # The tests want the tools that it is compared with, and root: scripts/test.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/diskferry man man
            installManPage man/*.1
            for shell in bash zsh fish; do $out/bin/diskferry completions $shell >diskferry.$shell; done
            installShellCompletion diskferry.bash diskferry.zsh diskferry.fish
          '';
          meta = {
            description = "Serve, copy, convert and inspect virtual disks";
            license = with pkgs.lib.licenses; [ mit asl20 ];
            platforms = systems;
            mainProgram = "diskferry";
          };
        };
      });
    };
}
