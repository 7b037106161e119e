#!/bin/sh
# Installs agent-proxy for this user, without root: the program in ~/.local/bin, man pages and completions in ~/.local/share.
#
#   sh install.sh [VERSION]
#
# AGENT_PROXY_RELEASES is the address of the releases, below which a folder vVERSION has the files; it may be file:///…
# AGENT_PROXY_PREFIX is the place to install to, ~/.local by default. The archive has to have the checksum of SHA256SUMS.
set -eu
fail() { echo "install.sh: $*" >&2; exit 1; }

version=${1:-0.1.0}
releases=${AGENT_PROXY_RELEASES:-}
prefix=${AGENT_PROXY_PREFIX:-$HOME/.local}
[ -n "$releases" ] || fail "AGENT_PROXY_RELEASES has no address: give that of the releases' page, …/releases/download"
[ "$(uname -s)" = Linux ] || fail "agent-proxy runs on Linux: use a virtual machine or a container"
case $(uname -m) in
    x86_64) cpu=x86_64 ;;
    aarch64 | arm64) cpu=aarch64 ;;
    *) fail "there is no program for $(uname -m): build it from source" ;;
esac
name=agent-proxy-$version-$cpu-linux
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in SHA256SUMS "$name.tar.gz"; do
    curl --fail --silent --show-error --location --retry 3 --max-time 600 --output "$work/$file" "$releases/v$version/$file" ||
        fail "$releases/v$version/$file cannot be downloaded"
done
cd "$work"
grep "  $name.tar.gz\$" SHA256SUMS >wanted || fail "SHA256SUMS has no $name.tar.gz"
sha256sum --check --quiet wanted >&2 || fail "$name.tar.gz has another checksum than SHA256SUMS says: nothing was installed"
tar --extract --gzip --file "$name.tar.gz"
cd "$name"
install -D -m 755 agent-proxy "$prefix/bin/agent-proxy.new"
# A daemon that runs keeps the old program.
mv -f "$prefix/bin/agent-proxy.new" "$prefix/bin/agent-proxy"
install -d "$prefix/share/man/man1"
install -m 644 man/*.1 "$prefix/share/man/man1/"
install -D -m 644 completions/agent-proxy.bash "$prefix/share/bash-completion/completions/agent-proxy"
install -D -m 644 completions/_agent-proxy "$prefix/share/zsh/site-functions/_agent-proxy"
install -D -m 644 completions/agent-proxy.fish "$prefix/share/fish/vendor_completions.d/agent-proxy.fish"
echo "installed $("$prefix/bin/agent-proxy" --version) in $prefix/bin"
case :$PATH: in *":$prefix/bin:"*) ;; *) echo "$prefix/bin is not in PATH: add it there" ;; esac
