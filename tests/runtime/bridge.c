/*
 * bridge LISTEN TARGET: be a client of the unix socket TARGET for somebody who is not here.
 *
 * One connection is accepted on the unix socket LISTEN, and its bytes are carried to TARGET
 * and back until either end hangs up. Who looks at the peer of the connection to TARGET sees
 * this process, so whoever speaks through LISTEN is seen as a process of this container.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "bridge: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int unix_socket(const char *path, struct sockaddr_un *address)
{
    int made = socket(AF_UNIX, SOCK_STREAM, 0);

    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address->sun_path) {
        errno = ENAMETOOLONG;
        fail(path);
    }
    strcpy(address->sun_path, path);
    if (made < 0)
        fail("socket");
    return made;
}

/* Carry what can be read at once; 0 when that end has hung up. */
static int carry(int from, int to)
{
    char bytes[65536];
    ssize_t left = read(from, bytes, sizeof bytes);
    const char *at = bytes;

    if (left <= 0)
        return 0;
    while (left > 0) {
        ssize_t sent = send(to, at, left, MSG_NOSIGNAL);
        if (sent <= 0)
            return 0;
        at += sent;
        left -= sent;
    }
    return 1;
}

int main(int count, char **words)
{
    struct sockaddr_un here, there;
    char hidden[sizeof here.sun_path + 8];
    int listener, near_end, far_end;

    if (count != 3) {
        fprintf(stderr, "usage: bridge LISTEN TARGET\n");
        return 2;
    }
    far_end = unix_socket(words[2], &there);
    if (connect(far_end, (struct sockaddr *)&there, sizeof there) < 0)
        fail(words[2]);

    /* It gets its name once it listens: who sees the name can connect. */
    snprintf(hidden, sizeof hidden, "%s.new", words[1]);
    listener = unix_socket(hidden, &here);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) < 0)
        fail("bind");
    if (listen(listener, 1) < 0)
        fail("listen");
    if (rename(hidden, words[1]) < 0)
        fail("rename");
    near_end = accept(listener, NULL, NULL);
    if (near_end < 0)
        fail("accept");

    for (;;) {
        struct pollfd ends[2] = {{near_end, POLLIN, 0}, {far_end, POLLIN, 0}};
        if (poll(ends, 2, -1) < 0)
            fail("poll");
        if (ends[0].revents && !carry(near_end, far_end))
            return 0;
        if (ends[1].revents && !carry(far_end, near_end))
            return 0;
    }
}
