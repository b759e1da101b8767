/* The way out of a trial whose network is restricted: names and connections of allowed hosts, and of nobody else.
 *
 *   proxy INSIDE PORT HOST...     INSIDE is this end's address on the link to the trial, HOST a name or *.name
 *   proxy INSIDE PORT '*'         every name is answered, as the name servers answer it; connections are not ours then
 *
 * On port 53 it answers for allowed names with their IPv4 addresses, asked of the name servers of /etc/resolv.conf in
 * queries of its own making, so that nothing but such a name ever gets out; other names do not exist. Connections that
 * are redirected to PORT have to begin with a TLS ClientHello or an HTTP/1 request that names an allowed host: they are
 * passed on to an address of this name, wherever they were meant to go, at the port that they were meant for. All others
 * are reset. It goes on in the background when it listens, without any right. Each query and connection has a process
 * of its own, so that nothing which comes from inside is read by the one that listens. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy.h"

enum { NOBODY = 65534, MOST_CHILDREN = 400 };

in_addr_t inside;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int listen_at(int kind, in_addr_t address, unsigned port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((in_port_t)port), .sin_addr.s_addr = address};
    int yes = 1, made = socket(AF_INET, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(made, (struct sockaddr *)&at, sizeof at) != 0 || (kind == SOCK_STREAM && listen(made, 128) != 0))
        fail("proxy: cannot listen");
    return made;
}

static void give_up_rights(void) {
    if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail("proxy: cannot give up its rights");
}

static void go_to_the_background(void) {
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    int child = fork();
    if (nothing < 0 || child < 0)
        fail("proxy: cannot go on in the background");
    if (child > 0)
        _exit(0);
    setsid();
    for (int i = 0; i < 3; i++)
        dup2(nothing, i);
}

int main(int count, char **words) {
    unsigned char query[LONGEST_MESSAGE];
    int children = 0;
    if (count < 3 || inet_pton(AF_INET, words[1], &inside) != 1)
        return 125;
    allow(words + 3, count - 3);
    read_servers();
    struct pollfd news[] = {{.fd = listen_at(SOCK_DGRAM, inside, 53), .events = POLLIN},
                            {.fd = listen_at(SOCK_STREAM, inside, 53), .events = POLLIN},
                            {.fd = listen_at(SOCK_STREAM, inside, (unsigned)atoi(words[2])), .events = POLLIN}};
    signal(SIGPIPE, SIG_IGN);
    give_up_rights();
    go_to_the_background();
    for (;;) {
        poll(news, 3, children > 0 ? 1000 : -1);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            children--;
        for (int i = 0; i < 3; i++) {
            struct sockaddr_in from;
            socklen_t size = sizeof from;
            ssize_t length = 0;
            int client = -1, child;
            if (!(news[i].revents & POLLIN))
                continue;
            if (i == 0)
                length = recvfrom(news[i].fd, query, LONGEST_QUERY, 0, (struct sockaddr *)&from, &size);
            else
                client = accept4(news[i].fd, NULL, NULL, SOCK_CLOEXEC);
            if (length < 0 || (i > 0 && client < 0))
                continue;
            child = children < MOST_CHILDREN ? fork() : -1;
            if (child == 0) {
                if (i == 0)
                    answer_datagram(news[0].fd, query, (size_t)length, &from);
                else if (i == 1)
                    answer_stream(client);
                else
                    serve(client);
                _exit(0);
            }
            children += child > 0;
            if (client >= 0)
                close(client);
        }
    }
}
