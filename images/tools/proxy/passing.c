/* Connections: from the trial, to an allowed host, and the bytes between them. */
#define _GNU_SOURCE
#include <netinet/in.h> /* before those of the kernel */
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter_ipv4.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proxy.h"

enum { CONNECT_MS = 10000, IDLE_MS = 3600 * 1000, LAST_WORDS_MS = 5000 };

long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int read_all(int from, unsigned char *into, size_t length) {
    struct pollfd news = {.fd = from, .events = POLLIN};
    for (ssize_t got; length > 0; into += got, length -= (size_t)got)
        if (poll(&news, 1, HELLO_MS) <= 0 || (got = read(from, into, length)) <= 0)
            return 0;
    return 1;
}

int write_all(int to, const void *bytes, size_t length) {
    const char *next = bytes;
    for (ssize_t done; length > 0; next += done, length -= (size_t)done)
        if ((done = send(to, next, length, MSG_NOSIGNAL)) <= 0)
            return 0;
    return 1;
}

/* Addresses of this machine, of its link to the trial, and of what no name beyond it can mean. */
static int leads_nowhere(in_addr_t address) {
    unsigned host = ntohl(address), net = host >> 24;
    return net == 0 || net == 127 || net >= 224 || host >> 16 == 0xa9fe || (host ^ ntohl(inside)) >> 3 == 0;
}

int connect_to(in_addr_t address, in_port_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
    int error = 0, server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof error;
    struct pollfd news = {.fd = server, .events = POLLOUT};
    if (server < 0)
        return -1;
    if (connect(server, (struct sockaddr *)&to, sizeof to) != 0 &&
        (errno != EINPROGRESS || poll(&news, 1, CONNECT_MS) <= 0 ||
         getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)) {
        close(server);
        return -1;
    }
    fcntl(server, F_SETFL, 0);
    return server;
}

static int connect_by_name(const char *name, in_port_t port) {
    in_addr_t addresses[MOST_ADDRESSES];
    int count = resolve(name, addresses), server = -1;
    for (int i = 0; server < 0 && i < count; i++)
        if (!leads_nowhere(addresses[i]))
            server = connect_to(addresses[i], port);
    return server;
}

/* Passes bytes on until both ends have closed: of the client's only the first `rest`, all of them where that is -1. */
void pass_both_ways(int client, int server, long long rest) {
    static char bytes[65536];
    struct pollfd ends[] = {{.fd = rest ? client : -1, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    while (ends[1].fd >= 0 || (ends[0].fd >= 0 && rest < 0)) {
        if (poll(ends, 2, IDLE_MS) <= 0)
            return;
        for (int i = 0; i < 2; i++) {
            ssize_t got;
            size_t most = i == 0 && rest >= 0 && rest < (long long)sizeof bytes ? (size_t)rest : sizeof bytes;
            if (!ends[i].revents)
                continue;
            if ((got = read(ends[i].fd, bytes, most)) < 0)
                return;
            if (got > 0 && !write_all(i ? client : server, bytes, (size_t)got))
                return;
            if (got == 0)
                shutdown(i ? client : server, SHUT_WR);
            if (i == 0 && rest > 0)
                rest -= got;
            if (got == 0 || (i == 0 && rest == 0))
                ends[i].fd = -1;
        }
    }
}

/* Reads what the client still sends, until it closes as well: to close before it does would reset the connection, and
 * with it what the client has not read yet (RFC 9112, 9.6). */
static void see_off(int client) {
    static char bytes[65536];
    struct pollfd news = {.fd = client, .events = POLLIN};
    long ends_at = now_ms() + LAST_WORDS_MS, left;
    shutdown(client, SHUT_WR);
    while ((left = ends_at - now_ms()) > 0 && poll(&news, 1, (int)left) > 0 && read(client, bytes, sizeof bytes) > 0)
        continue;
}

void serve(int client) {
    static unsigned char data[LONGEST_HELLO + 64];
    host_name name;
    size_t length = 0;
    int known = 0, server = -1;
    long long rest = -1;
    long ends_at = now_ms() + HELLO_MS;
    struct sockaddr_in meant;
    socklen_t size = sizeof meant;
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct pollfd news = {.fd = client, .events = POLLIN};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (getsockopt(client, SOL_IP, SO_ORIGINAL_DST, &meant, &size) != 0 || meant.sin_addr.s_addr == inside)
        return;
    while (known == 0 && length < LONGEST_HELLO && now_ms() < ends_at) {
        ssize_t got = poll(&news, 1, (int)(ends_at - now_ms())) > 0 ? read(client, data + length, LONGEST_HELLO - length) : 0;
        if (got <= 0)
            return;
        length += (size_t)got;
        known = data[0] == 22 ? name_of_tls(data, length, name) : name_of_http(data, &length, name, &rest);
    }
    if (known != 1 || !is_allowed(name) || (server = connect_by_name(name, meant.sin_port)) < 0)
        return;
    reset.l_onoff = 0;
    setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (write_all(server, data, length))
        pass_both_ways(client, server, rest);
    see_off(client);
}
