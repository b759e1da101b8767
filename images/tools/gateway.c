/* Passes connections to a port of this container on to whoever started this, by its standard streams: `gateway [PORT]`.
 *
 * It listens on 127.0.0.1 only; without a PORT, or with 0, the kernel chooses one. A frame is a connection's number and a
 * length, four bytes each, the highest first, and so many bytes. An empty frame ends what that side sends: from the
 * container's side when its client has nothing more to send, from the other side when the connection is to be closed
 * as soon as everything is sent. The first frame, of connection 0, holds the port. This ends with its standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 64, CHUNK = 1 << 16, MOST_WAITING = 16 << 20, HEADER = 8 };

struct connection {
    int socket; /* -1: free */
    uint32_t number;
    int has_ended; /* its client sends nothing more */
    int is_closing;
    char *waiting; /* what its client has not taken yet */
    size_t size;
};

static struct connection open_ones[MOST];
static uint32_t last_number;

static int write_all(const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t count = write(1, bytes, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        bytes += count;
        size -= (size_t)count;
    }
    return 1;
}

/* Sends a frame whose payload is behind room for its header. */
static void send_frame(uint32_t number, char *frame, size_t size) {
    uint32_t head[2] = {htonl(number), htonl((uint32_t)size)};
    memcpy(frame, head, HEADER);
    if (!write_all(frame, HEADER + size))
        exit(0);
}

static void drop(struct connection *one) {
    char frame[HEADER];
    if (!one->has_ended)
        send_frame(one->number, frame, 0);
    close(one->socket);
    free(one->waiting);
    *one = (struct connection){.socket = -1};
}

static void flush(struct connection *one) {
    ssize_t count = one->size ? send(one->socket, one->waiting, one->size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
        drop(one);
        return;
    }
    if (count > 0) {
        one->size -= (size_t)count;
        memmove(one->waiting, one->waiting + count, one->size);
    }
    if (one->size == 0 && one->is_closing)
        drop(one);
}

static void take(uint32_t number, const char *bytes, size_t size, int is_end) {
    for (struct connection *one = open_ones; one < open_ones + MOST; one++) {
        char *more;
        if (one->socket < 0 || one->number != number)
            continue;
        one->is_closing |= is_end;
        if (size > 0) {
            if (one->size + size > MOST_WAITING || !(more = realloc(one->waiting, one->size + size))) {
                drop(one); /* a client that does not read */
                return;
            }
            one->waiting = more;
            memcpy(one->waiting + one->size, bytes, size);
            one->size += size;
        }
        flush(one);
        return;
    }
}

/* Reads what has come on standard input, and hands on the payloads as they come; 0 at its end. */
static int read_input(void) {
    static char bytes[CHUNK];
    static unsigned char head[HEADER];
    static size_t head_size;
    static uint32_t number, left;
    ssize_t count = read(0, bytes, sizeof bytes);
    if (count <= 0)
        return count < 0 && errno == EINTR;
    for (ssize_t at = 0; at < count;) {
        size_t now = (size_t)(count - at);
        if (left == 0) {
            head[head_size++] = (unsigned char)bytes[at++];
            if (head_size < HEADER)
                continue;
            memcpy(&number, head, 4);
            memcpy(&left, head + 4, 4);
            number = ntohl(number), left = ntohl(left), head_size = 0;
            if (left == 0)
                take(number, NULL, 0, 1);
            continue;
        }
        now = now < left ? now : left;
        take(number, bytes + at, now, 0);
        at += (ssize_t)now;
        left -= (uint32_t)now;
    }
    return 1;
}

static void read_client(struct connection *one) {
    static char frame[HEADER + CHUNK];
    ssize_t count = recv(one->socket, frame + HEADER, CHUNK, MSG_DONTWAIT);
    if (count > 0) {
        send_frame(one->number, frame, (size_t)count);
    } else if (count == 0) {
        one->has_ended = 1;
        send_frame(one->number, frame, 0);
    } else if (errno != EAGAIN && errno != EINTR) {
        drop(one);
    }
}

static int listen_on(in_port_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof at;
    char frame[HEADER + 8];
    int yes = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&at, sizeof at) || listen(listening, MOST) ||
        getsockname(listening, (struct sockaddr *)&at, &size)) {
        perror("gateway: 127.0.0.1");
        exit(1);
    }
    send_frame(0, frame, (size_t)snprintf(frame + HEADER, 8, "%u", ntohs(at.sin_port)));
    return listening;
}

static void accept_one(int listening) {
    for (struct connection *one = open_ones; one < open_ones + MOST; one++)
        if (one->socket < 0) {
            int client = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (client >= 0)
                *one = (struct connection){.socket = client, .number = ++last_number};
            return;
        }
}

int main(int count, char **words) {
    struct pollfd news[MOST + 2];
    int listening;
    signal(SIGPIPE, SIG_IGN);
    for (int at = 0; at < MOST; at++)
        open_ones[at].socket = -1;
    listening = listen_on((in_port_t)(count > 1 ? atoi(words[1]) : 0));
    for (;;) {
        int used = 0;
        for (int at = 0; at < MOST; at++) {
            struct connection *one = &open_ones[at];
            short events = (short)((one->has_ended ? 0 : POLLIN) | (one->size ? POLLOUT : 0));
            used += one->socket >= 0;
            /* Of a client that has ended and gone, poll would tell for ever. */
            news[at] = (struct pollfd){.fd = events ? one->socket : -1, .events = events};
        }
        news[MOST] = (struct pollfd){.fd = 0, .events = POLLIN};
        news[MOST + 1] = (struct pollfd){.fd = used < MOST ? listening : -1, .events = POLLIN};
        if (poll(news, MOST + 2, -1) < 0)
            continue;
        for (int at = 0; at < MOST; at++) {
            struct connection *one = &open_ones[at];
            if (news[at].revents & POLLOUT)
                flush(one);
            if (one->socket >= 0 && !one->has_ended && news[at].revents & (POLLIN | POLLHUP | POLLERR))
                read_client(one);
        }
        if (news[MOST].revents && !read_input())
            return 0;
        if (news[MOST + 1].revents)
            accept_one(listening);
    }
}
