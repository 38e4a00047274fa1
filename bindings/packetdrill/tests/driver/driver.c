/* Plays packetdrill's part: loads the shared object, makes calls, injects packets and expects packets at their times.
 *
 *     driver LIBRARY SCENARIO
 *
 * exits with 0 if the scenario holds; else says on which line it does not. Without SCENARIO, lists them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interface.h"
#include "packet.h"

static struct packetdrill_interface ifc;
static packetdrill_interface_init_t init;

#define U ifc.userdata
#define MS 1000LL
#define OURS 8080
#define THEIRS 40000

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,        \
                    strerror(errno));                                                                                 \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

#define EQUAL(left, right)                                                                                            \
    do {                                                                                                              \
        long long l_ = (long long)(left), r_ = (long long)(right);                                                    \
        if (l_ != r_) {                                                                                               \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (errno %d)\n", __FILE__, __LINE__, #left, l_, r_, errno);     \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

/* The call fails with this errno. */
#define FAILS(call, number)                                                                                           \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        EQUAL(call, -1);                                                                                              \
        EQUAL(errno, number);                                                                                         \
    } while (0)

static long long now(void) {
    struct timeval tv;
    CHECK(ifc.gettimeofday(U, &tv, NULL) == 0);
    return tv.tv_sec * 1000000LL + tv.tv_usec;
}

static struct sockaddr_in address(uint32_t ip, uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
    return a;
}

static uint8_t buffer[70000];

static void send_segment(const struct segment *s) {
    uint8_t packet[4096];
    CHECK(ifc.netdev_send(U, packet, build_tcp(s, packet)) == 0);
}

/* The next segment that leaves, and its time. */
static struct segment expect(long long *at) {
    static uint8_t packet[70000];
    size_t len = sizeof packet;
    long long time;
    struct segment s;
    CHECK(ifc.netdev_receive(U, packet, &len, &time) == 0);
    CHECK(len > 0);
    CHECK(parse_tcp(packet, len, &s) == 0);
    if (at)
        *at = time;
    return s;
}

/* No packet would leave at any later time. */
static void expect_nothing(void) {
    size_t len = sizeof buffer;
    long long time;
    CHECK(ifc.netdev_receive(U, buffer, &len, &time) == 0);
    EQUAL(len, 0);
}

/* Takes out all packets that are still to leave. */
static void drain(void) {
    long long time;
    size_t len;
    do {
        len = sizeof buffer;
        CHECK(ifc.netdev_receive(U, buffer, &len, &time) == 0);
    } while (len > 0);
}

/* The script's end of a connection. */
struct peer {
    uint16_t port, ours;
    uint32_t seq, ack;
};

static void inject(const struct peer *p, uint8_t flags, const void *data, size_t len) {
    struct segment s = {.from = p->port, .to = p->ours, .seq = p->seq, .ack = p->ack, .flags = flags, .window = 65000};
    s.data = data;
    s.len = len;
    send_segment(&s);
}

static struct segment syn(uint16_t from, uint16_t to, uint8_t flags, uint32_t seq, uint32_t ack) {
    struct segment s = {.from = from, .to = to, .seq = seq, .ack = ack, .flags = flags, .window = 65000};
    const uint8_t options[] = {2, 4, 1460 >> 8, 1460 & 255, 1, 1, 4, 2};
    memcpy(s.options, options, sizeof options);
    s.options_len = sizeof options;
    return s;
}

static int listener(void) {
    struct sockaddr_in a = address(LOCAL, OURS);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(fd >= 0);
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    EQUAL(ifc.listen(U, fd, 5), 0);
    return fd;
}

/* The peer opens a connection; returns its end. */
static struct peer opened(uint16_t port) {
    struct segment s = syn(port, OURS, SYN, 1000, 0);
    send_segment(&s);
    struct segment r = expect(NULL);
    EQUAL(r.flags, SYN | ACK);
    EQUAL(r.ack, 1001);
    EQUAL(r.to, port);
    EQUAL(option(&r, 2), 1460);
    EQUAL(option(&r, 4), 1);
    /* Not offered, so absent. */
    EQUAL(option(&r, 3), -1);
    EQUAL(option(&r, 8), -1);
    struct peer p = {.port = port, .ours = OURS, .seq = 1001, .ack = r.seq + 1};
    EQUAL(ifc.usleep(U, 10000), 0);
    inject(&p, ACK, NULL, 0);
    return p;
}

/* A connection that this side has accepted. */
static int accepted(struct peer *p) {
    int fd = listener();
    *p = opened(THEIRS);
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    int child = ifc.accept(U, fd, (struct sockaddr *)&from, &len);
    CHECK(child >= 0);
    EQUAL(len, sizeof from);
    EQUAL(ntohl(from.sin_addr.s_addr), REMOTE);
    EQUAL(ntohs(from.sin_port), THEIRS);
    EQUAL(ifc.close(U, fd), 0);
    return child;
}

static int get(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    EQUAL(ifc.getsockopt(U, fd, level, name, &value, &len), 0);
    EQUAL(len, sizeof value);
    return value;
}

static void set(int fd, int level, int name, int value) {
    EQUAL(ifc.setsockopt(U, fd, level, name, &value, sizeof value), 0);
}

static void nonblocking(int fd) {
    EQUAL(ifc.fcntl(U, fd, F_SETFL, O_RDWR | O_NONBLOCK), 0);
    EQUAL(ifc.fcntl(U, fd, F_GETFL, 0), O_RDWR | O_NONBLOCK);
}

/* --- scenarios --- */

static void passive_open_data_and_close(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "question", 8);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 8);
    CHECK(memcmp(buffer, "question", 8) == 0);
    p.seq += 8;
    EQUAL(ifc.write(U, fd, "answer", 6), 6);
    struct segment s;
    /* The acknowledgement may go first, or with the data. */
    do
        s = expect(NULL);
    while (s.len == 0);
    EQUAL(s.seq, p.ack);
    EQUAL(s.ack, p.seq);
    EQUAL(s.len, 6);
    EQUAL(s.flags, ACK | PSH);
    CHECK(memcmp(s.data, "answer", 6) == 0);
    p.ack += 6;
    /* The peer finishes first. */
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, p.seq);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    EQUAL(s.seq, p.ack);
    p.ack++;
    inject(&p, ACK, NULL, 0);
    expect_nothing();
    FAILS(ifc.read(U, fd, buffer, 1), EBADF);
}

static void active_open_and_close_first(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    struct linger no = {0, 0};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_LINGER, &no, sizeof no), 0);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EALREADY);
    FAILS(ifc.write(U, fd, "x", 1), EAGAIN);
    struct segment s = expect(NULL);
    EQUAL(s.flags, SYN);
    EQUAL(s.to, THEIRS);
    EQUAL(s.len, 0);
    EQUAL(option(&s, 2), 1460);
    EQUAL(option(&s, 4), 1);
    CHECK(option(&s, 3) >= 0 && option(&s, 8) >= 0);
    struct segment r = syn(THEIRS, s.from, SYN | ACK, 7000, s.seq + 1);
    send_segment(&r);
    struct peer p = {.port = THEIRS, .ours = s.from, .seq = 7001, .ack = s.seq + 1};
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, 7001);
    EQUAL(s.seq, p.ack);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), 0);
    EQUAL(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), 0);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EISCONN);
    FAILS(ifc.read(U, fd, buffer, 1), EAGAIN);
    EQUAL(ifc.shutdown(U, fd, SHUT_WR), 0);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    p.ack++;
    inject(&p, ACK, NULL, 0);
    /* Half-closed: data still arrives. */
    inject(&p, ACK | PSH, "late", 4);
    p.seq += 4;
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 4);
    s = expect(NULL);
    EQUAL(s.ack, p.seq);
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, p.seq);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
    /* TIME-WAIT ends in silence. */
    expect_nothing();
}

static void lost_data_is_sent_again_in_time(void) {
    struct peer p;
    int fd = accepted(&p);
    long long first, again, third;
    EQUAL(ifc.write(U, fd, "data", 4), 4);
    struct segment s = expect(&first);
    EQUAL(s.len, 4);
    s = expect(&again);
    EQUAL(s.len, 4);
    EQUAL(s.seq, p.ack);
    /* The least time-out is 200 ms; a probe of the tail comes no later than the time-out. */
    CHECK(again - first >= 1 * MS && again - first <= 260 * MS);
    s = expect(&third);
    EQUAL(s.seq, p.ack);
    CHECK(third - again >= 150 * MS && third - again <= 520 * MS);
    long long before = now();
    CHECK(before >= third && before <= third + 10);
    p.ack += 4;
    inject(&p, ACK, NULL, 0);
    expect_nothing();
    EQUAL(ifc.ioctl(U, fd, SIOCOUTQ, (int *)buffer), 0);
    EQUAL(*(int *)buffer, 0);
}

static void syn_is_sent_again_after_a_second(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    set(fd, IPPROTO_TCP, TCP_SYNCNT, 2);
    nonblocking(fd);
    long long start = now(), at;
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(&at);
    CHECK(at - start <= 5);
    uint32_t seq = s.seq;
    const long long due[] = {1000 * MS, 3000 * MS};
    for (int i = 0; i < 2; i++) {
        s = expect(&at);
        EQUAL(s.flags & ~0xc0, SYN);
        EQUAL(s.seq, seq);
        CHECK(at - start >= due[i] && at - start <= due[i] + 5 * MS);
    }
    expect_nothing();
    CHECK(now() - start >= 7000 * MS && now() - start < 8000 * MS);
    struct pollfd f = {.fd = fd, .events = POLLIN | POLLOUT};
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    CHECK(f.revents & POLLERR && f.revents & POLLHUP);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), 0);
}

static void refused_and_reset(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(NULL);
    struct peer p = {.port = THEIRS, .ours = s.from, .seq = 0, .ack = s.seq + 1};
    inject(&p, RST | ACK, NULL, 0);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), ECONNREFUSED);
    EQUAL(ifc.close(U, fd), 0);

    fd = accepted(&p);
    inject(&p, ACK | PSH, "before", 6);
    p.seq += 6;
    inject(&p, RST, NULL, 0);
    /* Unread data is lost, and the reset is reported once. */
    FAILS(ifc.read(U, fd, buffer, sizeof buffer), ECONNRESET);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    EQUAL(ifc.close(U, fd), 0);

    /* A reset from a peer that had finished: the end of its data is read all the same. */
    drain();
    fd = accepted(&p);
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    inject(&p, RST, NULL, 0);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), EPIPE);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
}

static void closing_with_unread_data_resets(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "unread", 6);
    EQUAL(ifc.ioctl(U, fd, SIOCINQ, (int *)buffer), 0);
    EQUAL(*(int *)buffer, 6);
    EQUAL(ifc.close(U, fd), 0);
    struct segment s;
    do
        s = expect(NULL);
    while (!(s.flags & RST));
    EQUAL(s.seq, p.ack);
    expect_nothing();
    /* So does SO_LINGER with time zero. */
    fd = accepted(&p);
    struct linger now_ = {1, 0};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_LINGER, &now_, sizeof now_), 0);
    EQUAL(ifc.close(U, fd), 0);
    s = expect(NULL);
    CHECK(s.flags & RST);
    expect_nothing();
}

/* Blocking calls in a second thread, as packetdrill makes them. */
struct blocked {
    pthread_t thread;
    int fd, kind;
    volatile pid_t id;
    ssize_t result;
    int error;
    long long done_at;
};
enum { ACCEPT, CONNECT, READ, WRITE, EPOLL, CLOSE };

static void *block(void *argument) {
    struct blocked *b = argument;
    static uint8_t much[1 << 16];
    struct sockaddr_in to = address(REMOTE, THEIRS);
    struct epoll_event event;
    b->id = gettid();
    errno = 0;
    switch (b->kind) {
    case ACCEPT: b->result = ifc.accept(U, b->fd, NULL, NULL); break;
    case CONNECT: b->result = ifc.connect(U, b->fd, (struct sockaddr *)&to, sizeof to); break;
    case READ: b->result = ifc.read(U, b->fd, much, sizeof much); break;
    case WRITE: b->result = ifc.write(U, b->fd, much, sizeof much); break;
    case EPOLL: b->result = ifc.epoll_wait(U, b->fd, &event, 1, 50); break;
    case CLOSE: b->result = ifc.close(U, b->fd); break;
    }
    b->error = errno;
    if (b->error != EBADF) /* else there is no clock any more */
        b->done_at = now();
    return NULL;
}

/* Whether the kernel reports that the thread sleeps. */
static bool sleeps(pid_t id) {
    char path[64], line[512] = {0};
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    char *text = fgets(line, sizeof line, file);
    fclose(file);
    char *end = text ? strrchr(text, ')') : NULL;
    return end && end[1] == ' ' && end[2] == 'S';
}

static void start(struct blocked *b, int kind, int fd) {
    memset(b, 0, sizeof *b);
    b->kind = kind;
    b->fd = fd;
    CHECK(pthread_create(&b->thread, NULL, block, b) == 0);
    while (b->id == 0)
        sched_yield();
    /* As in packetdrill: the script goes on when the thread sleeps, several times in a row. */
    for (int calm = 0; calm < 5; calm = sleeps(b->id) ? calm + 1 : 0)
        usleep(1000);
}

static ssize_t join(struct blocked *b) {
    CHECK(pthread_join(b->thread, NULL) == 0);
    return b->result;
}

static void blocking_calls_in_a_second_thread(void) {
    int fd = listener();
    struct blocked b;
    start(&b, ACCEPT, fd);
    EQUAL(ifc.usleep(U, 500000), 0);
    struct peer p = opened(THEIRS);
    int child = (int)join(&b);
    CHECK(child > fd);
    start(&b, READ, child);
    EQUAL(ifc.usleep(U, 100000), 0);
    long long before = now();
    inject(&p, ACK | PSH, "wake", 4);
    EQUAL(join(&b), 4);
    CHECK(b.done_at >= before && b.done_at <= before + 20);
    p.seq += 4;
    /* More than the send buffer holds: the write waits for acknowledgements. */
    expect(NULL);
    set(child, SOL_SOCKET, SO_SNDBUF, 8192);
    start(&b, WRITE, child);
    uint32_t first = p.ack, sent = 0;
    while (sent < 1 << 16) {
        struct segment s = expect(NULL);
        if (s.seq + s.len - first > sent)
            sent = s.seq + (uint32_t)s.len - first;
        p.ack = first + sent;
        inject(&p, ACK, NULL, 0);
    }
    EQUAL(join(&b), 1 << 16);
    EQUAL(sent, 1 << 16);
    /* A reset wakes the reader. */
    start(&b, READ, child);
    inject(&p, RST, NULL, 0);
    EQUAL(join(&b), -1);
    EQUAL(b.error, ECONNRESET);
    /* connect. */
    int client = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    start(&b, CONNECT, client);
    /* The round trips above took no time: the tail may have been probed for at once. */
    struct segment s;
    do
        s = expect(NULL);
    while (s.flags == (ACK | PSH));
    EQUAL(s.flags, SYN);
    struct segment r = syn(THEIRS, s.from, SYN | ACK, 1, s.seq + 1);
    send_segment(&r);
    EQUAL(join(&b), 0);
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    /* close with SO_LINGER waits until the FIN is acknowledged. */
    struct linger long_ = {1, 10};
    EQUAL(ifc.setsockopt(U, client, SOL_SOCKET, SO_LINGER, &long_, sizeof long_), 0);
    struct peer q = {.port = THEIRS, .ours = s.from, .seq = 2, .ack = s.seq};
    start(&b, CLOSE, client);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    q.ack++;
    inject(&q, ACK, NULL, 0);
    EQUAL(join(&b), 0);
    /* A time limit of a blocked thread is a timer: time stops there. */
    int epoll = ifc.epoll_create(U, 1);
    before = now();
    start(&b, EPOLL, epoll);
    EQUAL(ifc.usleep(U, 200000), 0);
    EQUAL(join(&b), 0);
    CHECK(b.done_at - before >= 50 * MS);
    /* Freeing ends waiting calls (main does it, with this thread blocked). */
    start(&b, ACCEPT, fd);
    ifc.free(U);
    EQUAL(join(&b), -1);
    init(NULL, &ifc);
}

static void poll_and_epoll(void) {
    int fd = listener(), epoll = ifc.epoll_create(U, 1);
    CHECK(epoll >= 0);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    EQUAL(ifc.poll(U, &f, 1, 0), 0);
    long long before = now();
    EQUAL(ifc.poll(U, &f, 1, 30), 0);
    CHECK(now() - before >= 30 * MS && now() - before <= 31 * MS);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, fd, &e), 0);
    FAILS(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, fd, &e), EEXIST);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    struct peer p = opened(THEIRS);
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    EQUAL(f.revents, POLLIN);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN);
    EQUAL(got[0].data.u64, 7);
    int child = ifc.accept(U, fd, NULL, NULL);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    /* Edge-triggered: reported once for each arrival, read or not. */
    e.events = EPOLLIN | EPOLLET | EPOLLRDHUP;
    e.data.u64 = 8;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | PSH, "one", 3);
    p.seq += 3;
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN);
    EQUAL(got[0].data.u64, 8);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | PSH, "two", 3);
    p.seq += 3;
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    /* Level-triggered: reported as long as there is data. */
    e.events = EPOLLIN | EPOLLOUT;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    for (int i = 0; i < 2; i++) {
        EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
        EQUAL(got[0].events, EPOLLIN | EPOLLOUT);
    }
    e.events = EPOLLIN | EPOLLONESHOT;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    EQUAL(ifc.read(U, child, buffer, sizeof buffer), 6);
    e.events = EPOLLIN | EPOLLRDHUP;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | FIN, NULL, 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN | EPOLLRDHUP);
    EQUAL(ifc.shutdown(U, child, SHUT_WR), 0);
    struct pollfd both[] = {{.fd = child, .events = POLLIN}, {.fd = 999, .events = POLLIN}, {.fd = -1}};
    EQUAL(ifc.poll(U, both, 3, -1), 2);
    CHECK(both[0].revents & POLLHUP && both[0].revents & POLLIN);
    EQUAL(both[1].revents, POLLNVAL);
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_DEL, child, NULL), 0);
    FAILS(ifc.epoll_ctl(U, epoll, EPOLL_CTL_DEL, child, NULL), ENOENT);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
}

static struct tcp_info info(int fd) {
    struct tcp_info i;
    socklen_t len = sizeof i;
    memset(&i, 0xff, sizeof i);
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_INFO, &i, &len), 0);
    CHECK(len >= offsetof(struct tcp_info, tcpi_bytes_received) + 8);
    return i;
}

static void options_and_tcp_info(void) {
    struct peer p;
    int fd = listener();
    EQUAL(info(fd).tcpi_state, 10);
    EQUAL(ifc.close(U, fd), 0);
    fd = accepted(&p);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_MAXSEG), 1460);
    set(fd, SOL_SOCKET, SO_SNDBUF, 20000);
    EQUAL(get(fd, SOL_SOCKET, SO_SNDBUF), 40000);
    set(fd, SOL_SOCKET, SO_RCVBUF, 30000);
    EQUAL(get(fd, SOL_SOCKET, SO_RCVBUF), 60000);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
    EQUAL(get(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 3000);
    EQUAL(get(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EQUAL(get(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    char name[16] = {0};
    socklen_t len = sizeof name;
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    CHECK(strcmp(name, "cubic") == 0);
    EQUAL(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    len = sizeof name;
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    CHECK(strcmp(name, "reno") == 0);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, "none", 4), ENOENT);
    int number = 1;
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_MD5SIG, &number, sizeof number), ENOPROTOOPT);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_FASTOPEN, &number, sizeof number), ENOPROTOOPT);
    FAILS(ifc.setsockopt(U, fd, SOL_SOCKET, SO_ZEROCOPY, &number, sizeof number), ENOPROTOOPT);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_NODELAY, &number, 3), EINVAL);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    EQUAL(get(fd, IPPROTO_TCP, TCP_KEEPIDLE), 5);

    struct tcp_info i = info(fd);
    EQUAL(i.tcpi_state, 1);
    EQUAL(i.tcpi_snd_mss, 1460);
    EQUAL(i.tcpi_snd_cwnd, 10);
    EQUAL(i.tcpi_unacked, 0);
    EQUAL(i.tcpi_pmtu, 1500);
    EQUAL(i.tcpi_options, TCPI_OPT_SACK);
    EQUAL(i.tcpi_snd_ssthresh, 0x7fffffff);
    EQUAL(ifc.write(U, fd, buffer, 16000), 16000);
    for (int k = 0; k < 10; k++)
        EQUAL(expect(NULL).len, 1460);
    i = info(fd);
    EQUAL(i.tcpi_unacked, 10);
    EQUAL(i.tcpi_notsent_bytes, 1400);
    EQUAL(info(fd).tcpi_rtt / 1000, 10);
    EQUAL(ifc.usleep(U, 12000), 0);
    p.ack += 14600;
    inject(&p, ACK, NULL, 0);
    EQUAL(expect(NULL).len, 1400);
    i = info(fd);
    EQUAL(i.tcpi_unacked, 1);
    EQUAL(i.tcpi_bytes_acked, 14600);
    CHECK(i.tcpi_rtt > 10100 && i.tcpi_rtt < 12000 && i.tcpi_min_rtt >= 10000 && i.tcpi_min_rtt < 10100);
    CHECK(i.tcpi_snd_cwnd > 10);
    p.ack += 1400;
    inject(&p, ACK, NULL, 0);
    EQUAL(info(fd).tcpi_unacked, 0);
    /* Keep-alive: after 5 s of silence, and then every 2 s; the fourth time the connection is given up. */
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    EQUAL(get(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    long long silent = now(), at;
    struct segment s;
    for (int k = 0; k < 3; k++) {
        s = expect(&at);
        EQUAL(s.seq, p.ack - 1);
        CHECK(at - silent >= (5000 + k * 2000) * MS - 30 * MS && at - silent <= (5000 + k * 2000) * MS + 30 * MS);
    }
    s = expect(&at);
    CHECK(s.flags & RST);
    FAILS(ifc.read(U, fd, buffer, 1), ETIMEDOUT);
}

static void peeking_takes_nothing(void) {
    struct peer p;
    int fd = accepted(&p);
    static uint8_t data[1000];
    inject(&p, ACK, data, sizeof data);
    p.seq += 1000;
    uint16_t before = expect(NULL).window;
    for (int k = 0; k < 4; k++) {
        inject(&p, ACK, data, sizeof data);
        p.seq += 1000;
        expect(NULL);
    }
    int unread = -1;
    EQUAL(ifc.recv(U, fd, buffer, 3000, MSG_PEEK), 3000);
    EQUAL(ifc.recv(U, fd, buffer, 4500, MSG_PEEK), 4500);
    EQUAL(ifc.ioctl(U, fd, FIONREAD, &unread), 0);
    EQUAL(unread, 5000);
    /* They stay in the stack, and count against the window. */
    inject(&p, ACK, data, sizeof data);
    p.seq += 1000;
    EQUAL(expect(NULL).window, before - 5000);
    EQUAL(ifc.recv(U, fd, buffer, sizeof buffer, 0), 6000);
    /* At the end of the data, and after a reset. */
    inject(&p, ACK | FIN, "end", 3);
    p.seq += 4;
    EQUAL(ifc.recv(U, fd, buffer, 10, MSG_PEEK), 3);
    EQUAL(ifc.recv(U, fd, buffer, 10, 0), 3);
    EQUAL(ifc.recv(U, fd, buffer, 10, MSG_PEEK), 0);
    EQUAL(ifc.recv(U, fd, buffer, 10, 0), 0);
}

static void accepted_sockets_inherit_options(void) {
    int fd = listener();
    struct timeval limit = {3, 0}, seen;
    struct linger linger = {1, 7}, same;
    socklen_t len = sizeof seen;
    set(fd, IPPROTO_TCP, TCP_MAXSEG, 1100);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_CORK, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 2000);
    set(fd, IPPROTO_TCP, TCP_INQ, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, SOL_SOCKET, SO_SNDBUF, 10000);
    EQUAL(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    struct segment s = syn(THEIRS, OURS, SYN, 1000, 0);
    send_segment(&s);
    s = expect(NULL);
    EQUAL(s.flags, SYN | ACK);
    EQUAL(option(&s, 2), 1100);
    struct peer p = {.port = THEIRS, .ours = OURS, .seq = 1001, .ack = s.seq + 1};
    inject(&p, ACK, NULL, 0);
    /* Options that are set now apply to future connections. */
    set(fd, IPPROTO_TCP, TCP_MAXSEG, 900);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 0);
    int child = ifc.accept(U, fd, NULL, NULL);
    CHECK(child > fd);
    EQUAL(get(child, IPPROTO_TCP, TCP_MAXSEG), 1100);
    EQUAL(get(child, IPPROTO_TCP, TCP_NODELAY), 1);
    EQUAL(get(child, IPPROTO_TCP, TCP_CORK), 1);
    EQUAL(get(child, IPPROTO_TCP, TCP_KEEPIDLE), 5);
    EQUAL(get(child, IPPROTO_TCP, TCP_USER_TIMEOUT), 4000);
    EQUAL(get(child, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 2000);
    EQUAL(get(child, IPPROTO_TCP, TCP_INQ), 1);
    EQUAL(get(child, SOL_SOCKET, SO_KEEPALIVE), 1);
    EQUAL(get(child, SOL_SOCKET, SO_SNDBUF), 20000);
    EQUAL(ifc.getsockopt(U, child, SOL_SOCKET, SO_RCVTIMEO, &seen, &len), 0);
    EQUAL(seen.tv_sec, 3);
    len = sizeof same;
    EQUAL(ifc.getsockopt(U, child, SOL_SOCKET, SO_LINGER, &same, &len), 0);
    CHECK(same.l_onoff == 1 && same.l_linger == 7);
    char name[16] = {0};
    len = sizeof name;
    EQUAL(ifc.getsockopt(U, child, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    CHECK(strcmp(name, "reno") == 0);
    struct tcp_info i = info(child);
    EQUAL(i.tcpi_advmss, 1100);
    EQUAL(i.tcpi_snd_mss, 1100);
    set(child, IPPROTO_TCP, TCP_CORK, 0);
    EQUAL(ifc.write(U, child, buffer, 3000), 3000);
    EQUAL(expect(NULL).len, 1100);
    s = syn(THEIRS + 1, OURS, SYN, 1000, 0);
    send_segment(&s);
    do
        s = expect(NULL);
    while (s.to != THEIRS + 1);
    EQUAL(option(&s, 2), 900);
}

static void send_buffer_is_doubled(void) {
    struct peer p;
    int fd = accepted(&p);
    nonblocking(fd);
    set(fd, SOL_SOCKET, SO_SNDBUF, 10000);
    EQUAL(get(fd, SOL_SOCKET, SO_SNDBUF), 20000);
    EQUAL(ifc.write(U, fd, buffer, 50000), 20000);
    FAILS(ifc.write(U, fd, buffer, 50000), EAGAIN);
}

static void bad_pointers_lose_nothing(void) {
    struct peer p;
    int fd = accepted(&p);
    void *nowhere = (void *)8;
    inject(&p, ACK | PSH, "precious", 8);
    p.seq += 8;
    FAILS(ifc.read(U, fd, NULL, 100), EFAULT);
    FAILS(ifc.read(U, fd, nowhere, 100), EFAULT);
    FAILS(ifc.recv(U, fd, NULL, 100, MSG_PEEK), EFAULT);
    FAILS(ifc.recvfrom(U, fd, NULL, 100, MSG_WAITALL, NULL, NULL), EFAULT);
    struct iovec half[] = {{buffer, 4}, {NULL, 4}};
    FAILS(ifc.readv(U, fd, half, 2), EFAULT);
    struct msghdr m = {.msg_iov = half, .msg_iovlen = 2};
    FAILS(ifc.recvmsg(U, fd, &m, 0), EFAULT);
    FAILS(ifc.recvmsg(U, fd, nowhere, 0), EFAULT);
    int unread = -1;
    EQUAL(ifc.ioctl(U, fd, FIONREAD, &unread), 0);
    EQUAL(unread, 8);
    /* Discarded with MSG_TRUNC: there is no buffer to write to. */
    EQUAL(ifc.recv(U, fd, NULL, 3, MSG_TRUNC), 3);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 5);
    CHECK(memcmp(buffer, "cious", 5) == 0);
    FAILS(ifc.write(U, fd, NULL, 10), EFAULT);
    FAILS(ifc.write(U, fd, nowhere, 10), EFAULT);
    socklen_t len = sizeof(int);
    FAILS(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_MAXSEG, nowhere, &len), EFAULT);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_MAXSEG, nowhere, len), EFAULT);
    FAILS(ifc.gettimeofday(U, nowhere, NULL), EFAULT);
    int ends[2];
    EQUAL(ifc.pipe(U, ends), 0);
    EQUAL(ifc.write(U, ends[1], "kept", 4), 4);
    FAILS(ifc.read(U, ends[0], NULL, 4), EFAULT);
    EQUAL(ifc.read(U, ends[0], buffer, 4), 4);
    drain();
}

/* An acknowledgement with one SACK block, of numbers relative to the first byte. */
static void sack(const struct peer *p, uint32_t first, uint32_t from, uint32_t to) {
    struct segment s = {.from = p->port, .to = p->ours, .seq = p->seq, .ack = p->ack, .flags = ACK, .window = 65000};
    const uint32_t block[] = {htonl(first + from), htonl(first + to)};
    const uint8_t head[] = {1, 1, 5, 10};
    memcpy(s.options, head, 4);
    memcpy(s.options + 4, block, 8);
    s.options_len = 12;
    send_segment(&s);
}

static void tcp_info_tells_of_losses(void) {
    struct peer p;
    int fd = accepted(&p);
    uint32_t first = p.ack;
    struct tcp_info i = info(fd);
    EQUAL(i.tcpi_ca_state, TCP_CA_Open);
    EQUAL(i.tcpi_rcv_mss, 536);
    EQUAL(i.tcpi_advmss, 1460);
    inject(&p, ACK, buffer, 700);
    p.seq += 700;
    EQUAL(info(fd).tcpi_rcv_mss, 700);
    /* A segment that fills a hole counts with its own length, not with that of all it completes. */
    p.seq += 300;
    inject(&p, ACK, buffer, 900);
    p.seq -= 300;
    inject(&p, ACK, buffer, 300);
    p.seq += 1200;
    EQUAL(info(fd).tcpi_rcv_mss, 700);
    drain();
    EQUAL(ifc.write(U, fd, buffer, 14600), 14600);
    for (int k = 0; k < 10; k++)
        expect(NULL);
    EQUAL(ifc.usleep(U, 10000), 0);
    sack(&p, first, 1460, 2920);
    i = info(fd);
    EQUAL(i.tcpi_ca_state, TCP_CA_Disorder);
    EQUAL(i.tcpi_unacked, 10);
    EQUAL(i.tcpi_sacked, 1);
    EQUAL(i.tcpi_lost, 0);
    EQUAL(i.tcpi_retrans, 0);
    sack(&p, first, 1460, 5840);
    struct segment s = expect(NULL);
    EQUAL(s.seq, first);
    EQUAL(s.len, 1460);
    i = info(fd);
    EQUAL(i.tcpi_ca_state, TCP_CA_Recovery);
    EQUAL(i.tcpi_unacked, 10);
    EQUAL(i.tcpi_sacked, 3);
    EQUAL(i.tcpi_lost, 1);
    EQUAL(i.tcpi_retrans, 1);
    EQUAL(i.tcpi_notsent_bytes, 0);
    p.ack = first + 14600;
    inject(&p, ACK, NULL, 0);
    i = info(fd);
    EQUAL(i.tcpi_ca_state, TCP_CA_Open);
    EQUAL(i.tcpi_unacked + i.tcpi_sacked + i.tcpi_lost + i.tcpi_retrans, 0);
    EQUAL(i.tcpi_bytes_sent, 14600 + 1460);
    /* No answer: a probe of the tail, then the time-out. */
    EQUAL(ifc.write(U, fd, buffer, 2000), 2000);
    expect(NULL);
    expect(NULL);
    expect(NULL);
    i = info(fd);
    EQUAL(i.tcpi_ca_state, TCP_CA_Open);
    EQUAL(i.tcpi_lost, 0);
    EQUAL(i.tcpi_retrans, 1);
    do {
        s = expect(NULL);
        i = info(fd);
    } while (i.tcpi_ca_state == TCP_CA_Open);
    EQUAL(i.tcpi_ca_state, TCP_CA_Loss);
    EQUAL(i.tcpi_retransmits, 1);
    EQUAL(i.tcpi_unacked, 2);
    CHECK(i.tcpi_lost >= 1);
    drain();

    /* A mark that the peer echoes. */
    ifc.free(U);
    init("--ecn=on", &ifc);
    fd = listener();
    s = syn(THEIRS, OURS, SYN | 0xc0, 1000, 0);
    send_segment(&s);
    s = expect(NULL);
    EQUAL(s.flags, SYN | ACK | 0x40);
    struct peer q = {.port = THEIRS, .ours = OURS, .seq = 1001, .ack = s.seq + 1};
    inject(&q, ACK, NULL, 0);
    int child = ifc.accept(U, fd, NULL, NULL);
    EQUAL(ifc.write(U, child, buffer, 2920), 2920);
    q.ack += 1460;
    inject(&q, ACK | 0x40, NULL, 0);
    EQUAL(info(child).tcpi_ca_state, TCP_CA_CWR);
    q.ack += 1460;
    inject(&q, ACK, NULL, 0);
    EQUAL(info(child).tcpi_ca_state, TCP_CA_Open);
}

/* Microseconds, within one per hundred and a millisecond. */
static void about(long long is, long long expected) {
    if (is < expected - expected / 100 - MS || is > expected + expected / 100 + MS) {
        fprintf(stderr, "%lld us is not about %lld\n", is, expected);
        _exit(1);
    }
}

static void tcp_info_tells_what_limits(void) {
    /* The peer's window: shut, then too small. */
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(NULL);
    struct peer p = {.port = THEIRS, .ours = s.from, .seq = 1, .ack = s.seq + 1};
    struct segment r = syn(THEIRS, s.from, SYN | ACK, 0, s.seq + 1);
    r.window = 0;
    send_segment(&r);
    expect(NULL);
    EQUAL(info(fd).tcpi_rwnd_limited, 0);
    EQUAL(info(fd).tcpi_busy_time, 0);
    EQUAL(ifc.usleep(U, 50000), 0);
    EQUAL(ifc.write(U, fd, buffer, 1000), 1000);
    EQUAL(ifc.usleep(U, 100000), 0);
    about(info(fd).tcpi_rwnd_limited, 100 * MS);
    r = (struct segment){.from = THEIRS, .to = s.from, .seq = 1, .ack = p.ack, .flags = ACK, .window = 2000};
    EQUAL(ifc.usleep(U, 100000), 0);
    send_segment(&r);
    EQUAL(expect(NULL).len, 1000);
    about(info(fd).tcpi_rwnd_limited, 200 * MS);
    EQUAL(ifc.usleep(U, 30000), 0);
    r.ack += 1000;
    r.window = 10;
    send_segment(&r);
    about(info(fd).tcpi_busy_time, 230 * MS);
    EQUAL(ifc.write(U, fd, buffer, 1000), 1000);
    EQUAL(ifc.usleep(U, 100000), 0);
    r.window = 2000;
    send_segment(&r);
    about(info(fd).tcpi_rwnd_limited, 300 * MS);
    about(info(fd).tcpi_busy_time, 330 * MS);
    EQUAL(expect(NULL).len, 1000);
    EQUAL(ifc.usleep(U, 20000), 0);
    r.ack += 1000;
    send_segment(&r);
    EQUAL(ifc.usleep(U, 500000), 0);
    about(info(fd).tcpi_busy_time, 350 * MS);
    about(info(fd).tcpi_rwnd_limited, 300 * MS);
    EQUAL(info(fd).tcpi_sndbuf_limited, 0);
    /* With data in flight, data written behind a full window waits for the window as well. */
    EQUAL(ifc.write(U, fd, buffer, 2000), 2000);
    EQUAL(ifc.usleep(U, 10000), 0);
    about(info(fd).tcpi_rwnd_limited, 300 * MS);
    EQUAL(ifc.write(U, fd, buffer, 1000), 1000);
    EQUAL(ifc.usleep(U, 5000), 0);
    about(info(fd).tcpi_rwnd_limited, 305 * MS);
    EQUAL(ifc.close(U, fd), 0);
    drain();

    /* The send buffer. */
    fd = accepted(&p);
    nonblocking(fd);
    set(fd, SOL_SOCKET, SO_SNDBUF, 10000);
    EQUAL(ifc.write(U, fd, buffer, 50000), 20000);
    EQUAL(ifc.usleep(U, 10000), 0);
    p.ack += 14600;
    inject(&p, ACK, NULL, 0);
    /* Until here the limit was the congestion window. */
    EQUAL(info(fd).tcpi_sndbuf_limited, 0);
    EQUAL(ifc.write(U, fd, buffer, 50000), 14600);
    EQUAL(ifc.usleep(U, 20000), 0);
    about(info(fd).tcpi_sndbuf_limited, 20 * MS);
    p.ack += 20000;
    inject(&p, ACK, NULL, 0);
    EQUAL(ifc.usleep(U, 40000), 0);
    about(info(fd).tcpi_sndbuf_limited, 20 * MS);
    about(info(fd).tcpi_busy_time, 30 * MS);
    EQUAL(info(fd).tcpi_rwnd_limited, 0);
    drain();
}

static void little_waits_unsent_below_the_mark(void) {
    struct peer p;
    int fd = accepted(&p), epoll = ifc.epoll_create(U, 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 0);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 32000);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 32000);
    nonblocking(fd);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET}, got;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, fd, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(got.events, EPOLLOUT);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    /* A congestion window of data leaves meanwhile, and the rest waits. */
    EQUAL(ifc.write(U, fd, buffer, 59000), 14600 + 32000);
    FAILS(ifc.write(U, fd, buffer, 1), EAGAIN);
    EQUAL(info(fd).tcpi_notsent_bytes, 32000);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    /* Less than half of it is unsent: it can be written again. */
    p.ack += 14600;
    inject(&p, ACK, NULL, 0);
    CHECK(info(fd).tcpi_notsent_bytes < 16000);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(got.events, EPOLLOUT);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    /* Without the mark the buffer alone is the limit. */
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
    EQUAL(ifc.write(U, fd, buffer, 60000), 60000);
    drain();
}

/* The lengths of the next segments; 0 ends the list. */
static void expect_lengths(const int *lengths) {
    for (; *lengths; lengths++) {
        struct segment s = expect(NULL);
        EQUAL(s.len, *lengths);
    }
}

static void records_do_not_share_segments(void) {
    struct peer p;
    int fd = accepted(&p);
    EQUAL(ifc.write(U, fd, buffer, 15000), 15000);
    EQUAL(ifc.send(U, fd, buffer, 400, MSG_EOR), 400);
    EQUAL(ifc.send(U, fd, buffer, 4000, MSG_EOR), 4000);
    for (int k = 0; k < 4; k++)
        EQUAL(ifc.send(U, fd, buffer, 10, MSG_EOR), 10);
    EQUAL(ifc.write(U, fd, buffer, 1460), 1460);
    for (int k = 0; k < 10; k++)
        EQUAL(expect(NULL).len, 1460);
    uint32_t sent = p.ack;
    EQUAL(ifc.usleep(U, 10000), 0);
    p.ack += 14600;
    inject(&p, ACK, NULL, 0);
    struct segment s = expect(NULL);
    EQUAL(s.len, 800);
    EQUAL(s.flags, ACK | PSH);
    const int rest[] = {1460, 1460, 1080, 10, 10, 10, 10, 1460, 0};
    expect_lengths(rest);
    /* Retransmissions keep to it. */
    uint32_t first = sent + 14600;
    sack(&p, first, 800, 4840);
    s = expect(NULL);
    EQUAL(s.seq, first);
    EQUAL(s.len, 800);
    p.ack += 800 + 4000 + 40 + 1460;
    inject(&p, ACK, NULL, 0);
    expect_nothing();
    /* Small segments that a closed window held back. */
    s = (struct segment){.from = p.port, .to = p.ours, .seq = p.seq, .ack = p.ack, .flags = ACK, .window = 0};
    send_segment(&s);
    EQUAL(ifc.send(U, fd, buffer, 100, MSG_EOR), 100);
    EQUAL(ifc.send(U, fd, buffer, 200, 0), 200);
    inject(&p, ACK, NULL, 0);
    const int two[] = {100, 200, 0};
    expect_lengths(two);
    drain();
}

/* After a round-trip time the peer acknowledges `len` more bytes. */
static void answer(struct peer *p, uint32_t len) {
    EQUAL(ifc.usleep(U, 10000), 0);
    p->ack += len;
    inject(p, ACK, NULL, 0);
}

static void corks_and_more(void) {
    struct peer p;
    int fd = accepted(&p);
    long long start, at;
    /* Held until the cork is removed, or Nagle's algorithm switched off. */
    for (int k = 0; k < 2; k++) {
        set(fd, IPPROTO_TCP, TCP_CORK, 1);
        EQUAL(get(fd, IPPROTO_TCP, TCP_CORK), 1);
        EQUAL(ifc.write(U, fd, buffer, 40), 40);
        EQUAL(ifc.usleep(U, 50000), 0);
        EQUAL(ifc.write(U, fd, buffer, 40), 40);
        start = now();
        set(fd, IPPROTO_TCP, k == 0 ? TCP_CORK : TCP_NODELAY, k);
        struct segment s = expect(&at);
        EQUAL(s.len, 80);
        EQUAL(s.flags, ACK | PSH);
        CHECK(at - start < 10);
        answer(&p, 80);
    }
    /* Whole segments leave; the rest does after the retransmission time-out at the latest. */
    start = now();
    EQUAL(ifc.write(U, fd, buffer, 3000), 3000);
    EQUAL(expect(NULL).len, 1460);
    EQUAL(expect(NULL).len, 1460);
    answer(&p, 2920);
    EQUAL(expect(&at).len, 80);
    CHECK(at - start >= 190 * MS && at - start <= 300 * MS);
    answer(&p, 80);
    set(fd, IPPROTO_TCP, TCP_CORK, 0);

    /* MSG_MORE holds, with and without Nagle's algorithm, for the time-out ... */
    start = now();
    EQUAL(ifc.send(U, fd, buffer, 40, MSG_MORE), 40);
    struct segment s = expect(&at);
    EQUAL(s.len, 40);
    EQUAL(s.flags, ACK | PSH);
    CHECK(at - start >= 190 * MS && at - start <= 300 * MS);
    answer(&p, 40);
    /* ... until a call without it ... */
    EQUAL(ifc.send(U, fd, buffer, 100, MSG_MORE), 100);
    EQUAL(ifc.usleep(U, 5000), 0);
    EQUAL(ifc.send(U, fd, buffer, 160, MSG_MORE), 160);
    start = now();
    EQUAL(ifc.send(U, fd, buffer, 5, 0), 5);
    EQUAL(expect(&at).len, 265);
    CHECK(at - start < 10);
    answer(&p, 265);
    /* ... or a segment of the peer arrives. */
    EQUAL(ifc.send(U, fd, buffer, 3000, MSG_MORE), 3000);
    EQUAL(expect(NULL).len, 1460);
    EQUAL(expect(NULL).len, 1460);
    EQUAL(ifc.send(U, fd, buffer, 50, MSG_MORE), 50);
    start = now();
    answer(&p, 2920);
    s = expect(&at);
    EQUAL(s.len, 130);
    EQUAL(s.flags, ACK);
    CHECK(at - start >= 10 * MS && at - start < 11 * MS);
    answer(&p, 130);
    /* Closing holds nothing back. */
    EQUAL(ifc.send(U, fd, buffer, 7, MSG_MORE), 7);
    EQUAL(ifc.close(U, fd), 0);
    s = expect(NULL);
    EQUAL(s.len, 7);
    EQUAL(s.flags, ACK | PSH | FIN);
    drain();
}

/* The bytes still to be read, as reported by `recvmsg`. */
static int inquired(int fd, size_t len, int flags) {
    union {
        struct cmsghdr header;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec in = {buffer, len};
    struct msghdr m = {
        .msg_iov = &in, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    EQUAL(ifc.recvmsg(U, fd, &m, flags), (long long)len);
    EQUAL(m.msg_flags, 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c)
        return -1;
    EQUAL(c->cmsg_level, IPPROTO_TCP);
    EQUAL(c->cmsg_type, TCP_CM_INQ);
    EQUAL(c->cmsg_len, CMSG_LEN(sizeof(int)));
    CHECK(CMSG_NXTHDR(&m, c) == NULL);
    int value;
    memcpy(&value, CMSG_DATA(c), sizeof value);
    return value;
}

static void inquiries_tell_what_is_unread(void) {
    struct peer p;
    int fd = accepted(&p), two = 2;
    inject(&p, ACK, buffer, 1000);
    p.seq += 1000;
    EQUAL(inquired(fd, 100, 0), -1);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_INQ, &two, sizeof two), EINVAL);
    set(fd, IPPROTO_TCP, TCP_INQ, 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_INQ), 1);
    EQUAL(inquired(fd, 100, MSG_PEEK), 900);
    EQUAL(inquired(fd, 200, 0), 700);
    EQUAL(inquired(fd, 700, 0), 0);
    inject(&p, ACK | FIN, buffer, 500);
    p.seq += 501;
    /* So that the reader calls again for the end. */
    EQUAL(inquired(fd, 500, 0), 1);
    EQUAL(inquired(fd, 0, 0), 1);
    /* A lack of room is reported. */
    struct iovec in = {buffer, 10};
    struct msghdr m = {.msg_iov = &in, .msg_iovlen = 1};
    EQUAL(ifc.recvmsg(U, fd, &m, 0), 0);
    EQUAL(m.msg_flags, MSG_CTRUNC);
    drain();
}

static void who_drives_never_waits_for_ever(void) {
    int listening = listener();
    opened(THEIRS);
    int fd = ifc.accept(U, listening, NULL, NULL);
    CHECK(fd > listening);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    long long start = now();
    /* Nothing can happen any more: no other thread could inject a packet. */
    FAILS(ifc.read(U, fd, buffer, 1), EDEADLK);
    FAILS(ifc.accept(U, listening, NULL, NULL), EDEADLK);
    FAILS(ifc.poll(U, &f, 1, -1), EDEADLK);
    CHECK(now() - start < 100000 * MS);
    /* A call waits for timers: the peer is silent, and the connection fails. */
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    EQUAL(ifc.write(U, fd, "x", 1), 1);
    start = now();
    FAILS(ifc.read(U, fd, buffer, 1), ETIMEDOUT);
    CHECK(now() - start >= 4000 * MS && now() - start <= 7000 * MS);
    int client = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    set(client, IPPROTO_TCP, TCP_SYNCNT, 1);
    FAILS(ifc.connect(U, client, (struct sockaddr *)&to, sizeof to), ETIMEDOUT);
    drain();
}

static void errors_as_on_linux(void) {
    struct sockaddr_in a = address(LOCAL, OURS), other = address(0x0a000001, OURS);
    FAILS(ifc.socket(U, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(ifc.socket(U, AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(ifc.close(U, 77), EBADF);
    FAILS(ifc.read(U, -1, buffer, 1), EBADF);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&other, sizeof other), EADDRNOTAVAIL);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&a, 4), EINVAL);
    FAILS(ifc.bind(U, fd, NULL, sizeof a), EFAULT);
    FAILS(ifc.read(U, fd, buffer, 1), ENOTCONN);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    FAILS(ifc.shutdown(U, fd, SHUT_WR), ENOTCONN);
    FAILS(ifc.accept(U, fd, NULL, NULL), EINVAL);
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), EINVAL);
    int second = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    FAILS(ifc.bind(U, second, (struct sockaddr *)&a, sizeof a), EADDRINUSE);
    EQUAL(ifc.listen(U, fd, 1), 0);
    nonblocking(fd);
    FAILS(ifc.accept(U, fd, NULL, NULL), EAGAIN);
    FAILS(ifc.netdev_send(U, "\0no packet", 9), EINVAL);
    FAILS(ifc.fcntl(U, fd, 12345, 0), EINVAL);
    FAILS(ifc.poll(U, NULL, 2, 0), EFAULT);
    /* SO_RCVTIMEO, in the thread that drives the clock. */
    struct peer p;
    EQUAL(ifc.close(U, fd), 0);
    fd = accepted(&p);
    struct timeval limit = {0, 250000};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    long long before = now();
    FAILS(ifc.read(U, fd, buffer, 1), EAGAIN);
    CHECK(now() - before >= 250 * MS && now() - before <= 251 * MS);
    FAILS(ifc.recv(U, fd, buffer, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(ifc.send(U, fd, "x", 1, MSG_OOB), EOPNOTSUPP);
    /* AF_UNSPEC ends the connection, and the socket can be used again. */
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    EQUAL(ifc.connect(U, fd, &none, sizeof none), 0);
    CHECK(expect(NULL).flags & RST);
    FAILS(ifc.read(U, fd, buffer, 1), ENOTCONN);
}

static void vectors_peeking_and_messages(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "abcdef", 6);
    p.seq += 6;
    EQUAL(ifc.recv(U, fd, buffer, 4, MSG_PEEK), 4);
    CHECK(memcmp(buffer, "abcd", 4) == 0);
    uint8_t x[2], y[8];
    struct iovec in[] = {{x, 2}, {y, 8}};
    EQUAL(ifc.readv(U, fd, in, 2), 6);
    CHECK(memcmp(x, "ab", 2) == 0 && memcmp(y, "cdef", 4) == 0);
    struct segment s = expect(NULL);
    EQUAL(s.ack, p.seq);
    inject(&p, ACK | PSH, "ef", 2);
    p.seq += 2;
    struct msghdr m = {.msg_iov = in, .msg_iovlen = 2};
    EQUAL(ifc.recvmsg(U, fd, &m, 0), 2);
    CHECK(memcmp(x, "ef", 2) == 0);
    s = expect(NULL);
    EQUAL(s.ack, p.seq);
    struct iovec out[] = {{"gh", 2}, {"ijk", 3}};
    EQUAL(ifc.writev(U, fd, out, 2), 5);
    s = expect(NULL);
    CHECK(s.len == 5 && memcmp(s.data, "ghijk", 5) == 0);
    p.ack += 5;
    inject(&p, ACK, NULL, 0);
    struct msghdr n = {.msg_iov = out, .msg_iovlen = 1};
    EQUAL(ifc.sendmsg(U, fd, &n, 0), 2);
    s = expect(NULL);
    CHECK(s.len == 2 && memcmp(s.data, "gh", 2) == 0);
}

static void splice_through_a_pipe(void) {
    struct peer p;
    int fd = accepted(&p), ends[2];
    EQUAL(ifc.pipe(U, ends), 0);
    FAILS(ifc.splice(U, fd, NULL, fd, NULL, 10, 0), EINVAL);
    FAILS(ifc.splice(U, fd, NULL, ends[1], NULL, 10, SPLICE_F_NONBLOCK), EAGAIN);
    inject(&p, ACK | PSH, "through", 7);
    p.seq += 7;
    EQUAL(ifc.splice(U, fd, NULL, ends[1], NULL, 100, 0), 7);
    EQUAL(ifc.splice(U, ends[0], NULL, fd, NULL, 100, 0), 7);
    struct segment s;
    do
        s = expect(NULL);
    while (s.len == 0);
    CHECK(s.len == 7 && memcmp(s.data, "through", 7) == 0);
    int epoll = ifc.epoll_create(U, 1);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET}, got;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, ends[0], &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    EQUAL(ifc.write(U, ends[1], "pi", 2), 2);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    EQUAL(ifc.write(U, ends[1], "pe", 2), 2);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(ifc.read(U, ends[0], buffer, sizeof buffer), 4);
    EQUAL(ifc.close(U, ends[1]), 0);
    EQUAL(ifc.read(U, ends[0], buffer, sizeof buffer), 0);
}

static void datagrams(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = address(LOCAL, 5000), to = address(REMOTE, 6000), from;
    socklen_t len = sizeof from;
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    nonblocking(fd);
    FAILS(ifc.read(U, fd, buffer, 10), EAGAIN);
    FAILS(ifc.write(U, fd, "x", 1), EDESTADDRREQ);
    uint8_t packet[256], sent[256];
    EQUAL(ifc.netdev_send(U, packet, build_udp(6000, 5000, "datagram", 8, packet)), 0);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    EQUAL(ifc.recvfrom(U, fd, buffer, 4, MSG_TRUNC, (struct sockaddr *)&from, &len), 8);
    EQUAL(ntohs(from.sin_port), 6000);
    EQUAL(ifc.sendto(U, fd, "back", 4, 0, (struct sockaddr *)&to, sizeof to), 4);
    size_t count = sizeof sent;
    long long at;
    EQUAL(ifc.netdev_receive(U, sent, &count, &at), 0);
    EQUAL(count, 32);
    EQUAL(sent[9], 17);
    CHECK(memcmp(sent + 28, "back", 4) == 0);
    /* The port has no socket: a connected socket gets an error. */
    EQUAL(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), 0);
    EQUAL(ifc.write(U, fd, "who?", 4), 4);
    count = sizeof sent;
    EQUAL(ifc.netdev_receive(U, sent, &count, &at), 0);
    EQUAL(ifc.netdev_send(U, packet, build_icmp(3, 3, sent, packet)), 0);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    FAILS(ifc.write(U, fd, buffer, 2000), EMSGSIZE);
}

static void clock_is_virtual(void) {
    long long a = now(), b = now();
    EQUAL(b - a, 1);
    EQUAL(ifc.usleep(U, 3600000000u), 0);
    EQUAL(now() - b, 3600000001LL);
    expect_nothing();
}

static void flags_are_obeyed(void) {
    ifc.free(U);
    init("--ip_version=ipv4 --mtu=600 --timestamps=off --sack=0 --window_scaling=off", &ifc);
    CHECK(U != NULL);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(NULL);
    EQUAL(option(&s, 2), 560);
    EQUAL(s.options_len, 4);
    ifc.free(U);
    /* Invalid flags give no stack, and every call fails. */
    init("--mtu=many", &ifc);
    CHECK(U == NULL);
    FAILS(ifc.socket(U, AF_INET, SOCK_STREAM, 0), EFAULT);
    ifc.free(U);
    init(NULL, &ifc);
}

static void six_and_mapped_addresses(void) {
    /* IPv4 through a socket of IPv6: addresses are mapped. */
    int fd = ifc.socket(U, AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(OURS)}, from;
    socklen_t len = sizeof from;
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&any, sizeof any), 0);
    EQUAL(ifc.listen(U, fd, 1), 0);
    opened(THEIRS);
    CHECK(ifc.accept(U, fd, (struct sockaddr *)&from, &len) > fd);
    EQUAL(from.sin6_family, AF_INET6);
    CHECK(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
    /* IPv6 itself. */
    int client = ifc.socket(U, AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(THEIRS)};
    CHECK(inet_pton(AF_INET6, "fd3d:fa7b:d17d::1", &to.sin6_addr) == 1);
    nonblocking(client);
    FAILS(ifc.connect(U, client, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    size_t count = sizeof buffer;
    long long at;
    EQUAL(ifc.netdev_receive(U, buffer, &count, &at), 0);
    CHECK(count >= 60 && buffer[0] >> 4 == 6 && buffer[6] == 6);
    CHECK(memcmp(buffer + 24, &to.sin6_addr, 16) == 0);
    EQUAL(buffer[40 + 13], SYN);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
#define SCENARIO(name) {#name, name}
    SCENARIO(passive_open_data_and_close),
    SCENARIO(active_open_and_close_first),
    SCENARIO(lost_data_is_sent_again_in_time),
    SCENARIO(syn_is_sent_again_after_a_second),
    SCENARIO(refused_and_reset),
    SCENARIO(closing_with_unread_data_resets),
    SCENARIO(blocking_calls_in_a_second_thread),
    SCENARIO(poll_and_epoll),
    SCENARIO(options_and_tcp_info),
    SCENARIO(peeking_takes_nothing),
    SCENARIO(accepted_sockets_inherit_options),
    SCENARIO(send_buffer_is_doubled),
    SCENARIO(bad_pointers_lose_nothing),
    SCENARIO(tcp_info_tells_of_losses),
    SCENARIO(tcp_info_tells_what_limits),
    SCENARIO(little_waits_unsent_below_the_mark),
    SCENARIO(records_do_not_share_segments),
    SCENARIO(corks_and_more),
    SCENARIO(inquiries_tell_what_is_unread),
    SCENARIO(who_drives_never_waits_for_ever),
    SCENARIO(errors_as_on_linux),
    SCENARIO(vectors_peeking_and_messages),
    SCENARIO(splice_through_a_pipe),
    SCENARIO(datagrams),
    SCENARIO(clock_is_virtual),
    SCENARIO(flags_are_obeyed),
    SCENARIO(six_and_mapped_addresses),
};

int main(int argc, char **argv) {
    if (argc < 3) {
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
            puts(scenarios[i].name);
        return argc < 2 ? 2 : 0;
    }
    /* As packetdrill loads it. */
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    *(void **)&init = dlsym(library, "packetdrill_interface_init");
    CHECK(init != NULL);
    alarm(60);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(argv[2], scenarios[i].name) == 0) {
            init("", &ifc);
            CHECK(U != NULL);
            scenarios[i].run();
            ifc.free(U);
            return 0;
        }
    }
    fprintf(stderr, "%s: no such scenario\n", argv[2]);
    return 2;
}
