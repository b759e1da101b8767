#!/bin/bash
set -e
groupadd lab
usermod -aG lab anna
usermod -aG lab boris
cd /srv/lab
chown root:root . inbox && chmod 0755 . && chmod 1777 inbox
find reports -not -type l -exec chown root:lab {} +
find reports -type d -exec chmod 2770 {} +
find reports -type f -exec chmod 0660 {} +
chown -R boris:boris keys
find keys -type d -exec chmod 0700 {} +
find keys -type f -exec chmod 0600 {} +
chown root:lab bin bin/publish
chmod u-s,g-s bin bin/publish
chmod 0750 bin bin/publish
