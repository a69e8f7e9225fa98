#!/bin/sh
# The programs that some tests and guides call besides Python: kcat, tmux and promtool.
#
# Installs what is missing where that takes no question (Debian or a relative, as root or with a sudo that asks for no
# password); otherwise says what to install, and exits with 2. Starts no service: of Prometheus only promtool is wanted.
set -eu

missing() { # Debian packages of the programs that are not on the PATH
    for tool in kcat:kcat tmux:tmux promtool:prometheus; do
        command -v "${tool%:*}" >/dev/null || printf ' %s' "${tool#*:}"
    done
}

refuse() {
    echo "$1: install it by hand, then try again (Debian: apt-get install --no-install-recommends$packages)" >&2
    exit 2
}

packages=$(missing)
[ -n "$packages" ] || exit 0

command -v apt-get >/dev/null || refuse "missing:$packages, and there is no apt-get"
if [ "$(id -u)" = 0 ]; then
    root=env
elif sudo -n true 2>/dev/null; then
    root="sudo -n env"
else
    refuse "missing:$packages, and only root may install it"
fi

# While a package is unpacked this file is asked whether its service may start.
policy=${POLICY:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ]; then
    trap '$root rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
    $root chmod 755 $policy
fi

echo "installing$packages"
install() {
    # $packages is a list of words.
    # shellcheck disable=SC2086
    $root DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends $packages
}
install || { $root apt-get update --quiet && install; } || refuse "apt-get could not install$packages"
case $packages in *prometheus*)
    if command -v systemctl >/dev/null; then $root systemctl --quiet disable prometheus; fi
    ;;
esac

packages=$(missing)
[ -z "$packages" ] || refuse "still missing:$packages"
