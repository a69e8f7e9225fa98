#!/bin/sh
# Installs the external programs that some tests and guides call: kcat, tmux, promtool, Alertmanager, Redis and RabbitMQ, or
# those of its arguments, each as PROGRAM:PACKAGE.
#
# Needs Debian or a derivative, and root or a sudo without password; otherwise it prints the missing packages and exits
# with 2. Tests start what they need themselves, so the services of the packages are not started.
set -eu

tools=${*:-"kcat:kcat tmux:tmux promtool:prometheus prometheus-alertmanager:prometheus-alertmanager \
    redis-server:redis-server rabbitmq-server:rabbitmq-server"}

missing() { # Debian packages of the programs that are not on the PATH
    for tool in $tools; do
        command -v "${tool%:*}" >/dev/null || printf ' %s' "${tool#*:}"
    done
}

refuse() {
    echo "$1: install it manually, then try again (Debian: apt-get install --no-install-recommends$packages)" >&2
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

# While this file exists, dpkg does not start the services of new packages.
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
for service in $packages; do
    case $service in prometheus* | redis* | rabbitmq* | nginx | caddy)
        if command -v systemctl >/dev/null; then $root systemctl --quiet disable "$service"; fi
        ;;
    esac
done

packages=$(missing)
[ -z "$packages" ] || refuse "still missing:$packages"
