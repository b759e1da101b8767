#!/bin/bash
# Three users and a shared tree with everything wrong about its owners and modes.
set -e
for user in anna boris chen; do useradd --create-home --shell /bin/bash "$user"; done

mkdir -p /srv/lab/{reports/{2023,2024/drafts},inbox,keys/old,bin}
cd /srv/lab
echo "annual" > reports/2023/annual.txt
echo "march" > "reports/2024/march results.txt"
echo "draft" > reports/2024/drafts/-first.txt
echo "todo" > reports/.todo
echo "from anna" > inbox/anna.txt
echo "from chen" > inbox/chen.txt
echo "k1" > keys/deploy.key
echo "k0" > keys/old/deploy.key
printf '#!/bin/sh\necho published\n' > bin/publish
echo "colour = green" > /etc/lab.conf
ln -s /etc/lab.conf reports/settings

chown -R anna:anna reports bin
chown anna:anna inbox/anna.txt
chown chen:chen inbox/chen.txt
chmod -R u=rwX,g=rX,o=rX .
chmod 777 reports reports/2024 inbox keys bin reports/2023/annual.txt
chmod 6777 bin/publish
chmod 600 "reports/2024/march results.txt"
chmod 640 inbox/anna.txt inbox/chen.txt
chmod 644 /etc/lab.conf keys/deploy.key
