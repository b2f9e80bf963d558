/* The limits that bench/run compares all contenders with: for each work, the simplest loop that does only the unavoidable.
 * No protocol beyond what the work needs, no error handling beyond giving up, one purpose each:
 *
 *     limits to-null FILE             FILE by sendfile into Unix sockets, a stream a processor; the other ends splice it
 *                                     to /dev/null
 *     limits to-file FILE TARGET      the same, but the other ends write TARGET (made anew)
 *     limits to-memory FILE           the same, into memory of its own
 *     limits relay PORT NAME LENGTH STREAMS   ranges of http://127.0.0.1:PORT/NAME, received and sent on into Unix sockets,
 *                                     whose other ends receive them into memory
 *     limits requests COUNT           COUNT requests of 28 bytes and replies of 32, 64 in flight, and no data
 *     limits copy FILE TARGET         the data of FILE by pread and pwrite of 2 MiB in turn, into TARGET (made anew)
 *     limits copy-direct FILE TARGET  the same past the page cache, and made durable
 *     limits serve SOCKET FILE        an NBD server for fio that does as little as one can: one thread a connection,
 *                                     requests parsed in batches, small replies gathered, large ones by sendfile,
 *                                     writes received in place; no extents, no structured replies
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK (256 << 10) /* what one copy request carries by default, here and in nbdcopy */

static void die(const char *what) {
    fprintf(stderr, "limits: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void send_all(int fd, const void *data, size_t length) {
    for (const char *at = data; length > 0;) {
        ssize_t sent = send(fd, at, length, MSG_NOSIGNAL);
        if (sent <= 0)
            die("send");
        at += sent;
        length -= (size_t)sent;
    }
}

/* False at the end of the stream. */
static int receive_all(int fd, void *data, size_t length) {
    for (char *at = data; length > 0;) {
        ssize_t got = recv(fd, at, length, 0);
        if (got <= 0)
            return 0;
        at += got;
        length -= (size_t)got;
    }
    return 1;
}

static void send_file(int fd, int file, off_t offset, size_t length) {
    while (length > 0) {
        ssize_t sent = sendfile(fd, file, &offset, length);
        if (sent <= 0)
            die("sendfile");
        length -= (size_t)sent;
    }
}

static int open_file(const char *path, int flags) {
    int file = open(path, flags | O_CLOEXEC, 0600);
    if (file < 0)
        die(path);
    return file;
}

static size_t size_of(int file) {
    struct stat status;
    if (fstat(file, &status) != 0)
        die("fstat");
    return (size_t)status.st_size;
}

/* ---- Copies: as many streams as there are processors, each a part of the file; one process sends a part, another
 * receives it. ---- */

struct part {
    off_t offset;
    size_t length;
};

static void to_null(int socket, struct part part, int target) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        die("pipe2");
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    while (part.length > 0) {
        ssize_t in = splice(socket, NULL, ends[1], NULL, 1 << 20, SPLICE_F_MOVE);
        if (in <= 0)
            die("splice from the socket");
        for (ssize_t left = in; left > 0;) {
            ssize_t out = splice(ends[0], NULL, target, NULL, (size_t)left, SPLICE_F_MOVE);
            if (out <= 0)
                die("splice to /dev/null");
            left -= out;
        }
        part.length -= (size_t)in;
    }
}

/* By way of a buffer that stays in the cache. Measured against it and slower: splice (which copies too, page by page),
 * receiving into a mapping (a fault a page) and into anonymous memory. */
static void to_pages(int socket, struct part part, int target) {
    static char buffer[CHUNK];
    while (part.length > 0) {
        ssize_t got = recv(socket, buffer, sizeof buffer, 0);
        if (got <= 0 || pwrite(target, buffer, (size_t)got, part.offset) != got)
            die("receive and write");
        part.offset += got;
        part.length -= (size_t)got;
    }
}

static void send_part(int socket, struct part part, int file) {
    while (part.length > 0) {
        size_t length = part.length < CHUNK ? part.length : CHUNK;
        send_file(socket, file, part.offset, length);
        part.offset += (off_t)length;
        part.length -= length;
    }
}

typedef void end_of_stream(int socket, struct part part, int file);

static void in_a_child(end_of_stream *end, int socket, struct part part, int file) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        end(socket, part, file);
        _exit(0);
    }
}

/* Waits for all children; false when one has failed. */
static int children_succeed(void) {
    int status, good = 1;
    while (wait(&status) > 0)
        good &= status == 0;
    return good;
}

/* `streams` parts of `length` bytes, each from a child that sends, by way of a Unix socket, to one that receives. */
static int in_streams(size_t length, size_t streams, end_of_stream *sender, int file, end_of_stream *receiver, int target) {
    int room = 1 << 22;
    for (size_t stream = 0; stream < streams; stream++) {
        size_t begin = length / streams * stream;
        size_t end = stream + 1 == streams ? length : length / streams * (stream + 1);
        struct part part = {(off_t)begin, end - begin};
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
            die("socketpair");
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        in_a_child(sender, ends[0], part, file);
        in_a_child(receiver, ends[1], part, target);
        close(ends[0]);
        close(ends[1]);
    }
    return children_succeed() ? 0 : 1;
}

static int copy(const char *path, end_of_stream *receive, int target) {
    int file = open_file(path, O_RDONLY);
    return in_streams(size_of(file), (size_t)sysconf(_SC_NPROCESSORS_ONLN), send_part, file, receive, target);
}

static int new_target(int target, const char *source) {
    struct stat status;
    if (target < 0 || stat(source, &status) != 0 || ftruncate(target, status.st_size) != 0)
        die("the target");
    return target;
}

/* ---- A file to a file, by one thread. ---- */

#define BULK (2 << 20)

static void to_a_file(const char *path, const char *target, int direct) {
    int from = open_file(path, O_RDONLY | direct);
    int to = new_target(open_file(target, O_WRONLY | O_CREAT | O_TRUNC | direct), path);
    void *buffer = aligned_alloc(BULK, BULK);
    madvise(buffer, BULK, MADV_HUGEPAGE);
    for (off_t end = 0, at; (at = lseek(from, end, SEEK_DATA)) >= 0;) {
        end = lseek(from, at, SEEK_HOLE);
        while (at < end) {
            ssize_t got = pread(from, buffer, (size_t)(end - at < BULK ? end - at : BULK), at);
            if (got <= 0 || pwrite(to, buffer, (size_t)got, at) != got)
                die(got <= 0 ? "pread" : "pwrite");
            at += got;
        }
    }
    if (errno != ENXIO || (direct && fdatasync(to) != 0))
        die(direct ? "fdatasync" : "lseek");
}

/* ---- Ranges of a file on a web server. ---- */

#define RANGE (8 << 20)

static struct {
    int port;
    const char *name;
} web;

/* Reads the head of a reply, a byte at a time, which is 200 calls in 8 MiB. */
static void skip_head(int fd) {
    char last[4] = {0};
    while (memcmp(last, "\r\n\r\n", sizeof last) != 0) {
        memmove(last, last + 1, sizeof last - 1);
        if (recv(fd, &last[3], 1, 0) != 1)
            die("receive the head");
    }
}

static void relay(int socket_out, struct part part, int unused) {
    static char buffer[CHUNK];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)web.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    for (; part.length > 0; (void)unused) {
        size_t length = part.length < RANGE ? part.length : RANGE;
        char request[512];
        int words = snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: localhost\r\nRange: bytes=%lld-%lld\r\n\r\n", web.name,
                             (long long)part.offset, (long long)part.offset + (long long)length - 1);
        send_all(fd, request, (size_t)words);
        skip_head(fd);
        part.offset += (off_t)length;
        part.length -= length;
        while (length > 0) {
            ssize_t got = recv(fd, buffer, length < sizeof buffer ? length : sizeof buffer, 0);
            if (got <= 0)
                die("receive a range");
            send_all(socket_out, buffer, (size_t)got);
            length -= (size_t)got;
        }
    }
}

static void to_nowhere(int socket, struct part part, int unused) {
    static char buffer[CHUNK];
    for (; part.length > 0; (void)unused) {
        size_t length = part.length < CHUNK ? part.length : CHUNK;
        if (!receive_all(socket, buffer, length))
            die("receive");
        part.length -= length;
    }
}

/* ---- Requests and replies with nothing in them. ---- */

static void requests(long count) {
    enum { REQUEST = 28, REPLY = 32, IN_FLIGHT = 64 };
    char out[IN_FLIGHT * REQUEST] = {0}, in[IN_FLIGHT * REPLY] = {0};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        die("socketpair");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    for (long left = count; left > 0; left -= IN_FLIGHT) {
        size_t batch = left < IN_FLIGHT ? (size_t)left : IN_FLIGHT;
        if (child == 0) {
            if (!receive_all(ends[1], out, batch * REQUEST))
                die("recv");
            send_all(ends[1], in, batch * REPLY);
        } else {
            send_all(ends[0], out, batch * REQUEST);
            if (!receive_all(ends[0], in, batch * REPLY))
                die("recv");
        }
    }
    if (child == 0)
        _exit(0);
}

/* ---- An NBD server for fio. ---- */

enum { OPT_EXPORT_NAME = 1, OPT_ABORT = 2, OPT_INFO = 6, OPT_GO = 7 };
enum { REP_ACK = 1, REP_INFO = 3 };
enum { CMD_READ = 0, CMD_WRITE = 1, CMD_DISC = 2 };
#define REP_ERR_UNSUP ((1u << 31) + 1)
/* HAS_FLAGS, SEND_FLUSH, SEND_FUA, CAN_MULTI_CONN */
#define EXPORT_FLAGS (1 | 1 << 2 | 1 << 3 | 1 << 8)
#define SMALL (16 << 10) /* reads up to this are copied into the batch of replies */

struct request {
    uint32_t magic;
    uint16_t flags, type;
    uint64_t cookie, offset;
    uint32_t length;
} __attribute__((packed));

struct reply {
    uint32_t magic, error;
    uint64_t cookie;
} __attribute__((packed));

struct export {
    uint64_t size;
    uint16_t flags;
} __attribute__((packed));

static struct {
    int file;
    char *map;
    size_t size;
} disk;

static struct export export_now(void) {
    return (struct export){.size = htobe64(disk.size), .flags = htobe16(EXPORT_FLAGS)};
}

static void option_reply(int fd, uint32_t option, uint32_t type, const void *data, uint32_t length) {
    struct {
        uint64_t magic;
        uint32_t option, type, length;
    } __attribute__((packed)) head = {htobe64(0x3e889045565a9ULL), option, htobe32(type), htobe32(length)};
    send_all(fd, &head, sizeof head);
    send_all(fd, data, length);
}

/* True when the transmission phase begins. */
static int negotiate(int fd) {
    struct {
        uint64_t magic, version;
        uint16_t flags;
    } __attribute__((packed)) greeting = {htobe64(0x4e42444d41474943ULL), htobe64(0x49484156454f5054ULL), htobe16(3)};
    struct {
        uint64_t magic;
        uint32_t option, length;
    } __attribute__((packed)) head;
    uint32_t client_flags;
    char data[4096];
    send_all(fd, &greeting, sizeof greeting);
    if (!receive_all(fd, &client_flags, sizeof client_flags))
        return 0;
    while (receive_all(fd, &head, sizeof head)) {
        uint32_t length = be32toh(head.length), option = be32toh(head.option);
        if (length > sizeof data || !receive_all(fd, data, length))
            return 0;
        struct export export = export_now();
        if (option == OPT_EXPORT_NAME) {
            send_all(fd, &export, sizeof export);
            return 1;
        }
        if (option == OPT_GO || option == OPT_INFO) {
            struct {
                uint16_t type;
                struct export export;
            } __attribute__((packed)) info = {0, export};
            option_reply(fd, head.option, REP_INFO, &info, sizeof info);
        }
        int known = option == OPT_GO || option == OPT_INFO || option == OPT_ABORT;
        option_reply(fd, head.option, known ? REP_ACK : REP_ERR_UNSUP, NULL, 0);
        if (option == OPT_GO)
            return 1;
        if (option == OPT_ABORT)
            return 0;
    }
    return 0;
}

static void *serve_connection(void *argument) {
    int fd = (int)(intptr_t)argument;
    static const size_t in_size = 64 << 10, out_size = 1 << 20;
    char *in = malloc(in_size), *out = malloc(out_size);
    if (in == NULL || out == NULL)
        die("malloc");
    size_t have = 0, ready = 0;
    int open = negotiate(fd);
    while (open) {
        ssize_t got = recv(fd, in + have, in_size - have, 0);
        if (got <= 0)
            break;
        have += (size_t)got;
        size_t at = 0;
        while (open && have - at >= sizeof(struct request)) {
            struct request request;
            memcpy(&request, in + at, sizeof request);
            at += sizeof request;
            uint64_t offset = be64toh(request.offset);
            uint32_t length = be32toh(request.length);
            uint16_t type = be16toh(request.type);
            if (type == CMD_DISC || request.magic != htobe32(0x25609513) || offset > disk.size || length > disk.size - offset) {
                open = 0;
                break;
            }
            if (type == CMD_WRITE) {
                size_t here = have - at < length ? have - at : length;
                memcpy(disk.map + offset, in + at, here);
                at += here;
                if (!receive_all(fd, disk.map + offset + here, length - here))
                    open = 0;
            }
            struct reply reply = {htobe32(0x67446698), 0, request.cookie};
            if (out_size - ready < sizeof reply + SMALL) {
                send_all(fd, out, ready);
                ready = 0;
            }
            memcpy(out + ready, &reply, sizeof reply);
            ready += sizeof reply;
            if (type == CMD_READ && length <= SMALL) {
                memcpy(out + ready, disk.map + offset, length);
                ready += length;
            } else if (type == CMD_READ) {
                send_all(fd, out, ready);
                ready = 0;
                send_file(fd, disk.file, (off_t)offset, length);
            }
        }
        memmove(in, in + at, have - at);
        have -= at;
        if (ready > 0)
            send_all(fd, out, ready);
        ready = 0;
    }
    close(fd);
    free(in);
    free(out);
    return NULL;
}

static void serve(const char *path, const char *image) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    disk.file = open_file(image, O_RDWR);
    disk.size = size_of(disk.file);
    disk.map = mmap(NULL, disk.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, disk.file, 0);
    if (disk.map == MAP_FAILED || strlen(path) >= sizeof address.sun_path)
        die("the image or the socket's path");
    memcpy(address.sun_path, path, strlen(path) + 1);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0)
        die(path);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        int room = 1 << 22;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        if (fd < 0 || pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)fd) != 0)
            die("accept");
        pthread_detach(thread);
    }
}

int main(int argc, char **argv) {
    const char *work = argc > 2 ? argv[1] : "";
    if (!strcmp(work, "to-null") && argc == 3)
        return copy(argv[2], to_null, open_file("/dev/null", O_WRONLY));
    if (!strcmp(work, "to-file") && argc == 4)
        return copy(argv[2], to_pages, new_target(open_file(argv[3], O_RDWR | O_CREAT | O_TRUNC), argv[2]));
    if (!strcmp(work, "to-memory") && argc == 3)
        return copy(argv[2], to_pages, new_target(memfd_create("limits", MFD_CLOEXEC), argv[2]));
    if ((!strcmp(work, "copy") || !strcmp(work, "copy-direct")) && argc == 4) {
        to_a_file(argv[2], argv[3], !strcmp(work, "copy") ? 0 : O_DIRECT);
        return 0;
    }
    if (!strcmp(work, "relay") && argc == 6) {
        web.port = atoi(argv[2]);
        web.name = argv[3];
        return in_streams(strtoul(argv[4], NULL, 10), strtoul(argv[5], NULL, 10), relay, -1, to_nowhere, -1);
    }
    if (!strcmp(work, "requests") && argc == 3) {
        requests(atol(argv[2]));
        return children_succeed() ? 0 : 1;
    }
    if (!strcmp(work, "serve") && argc == 4)
        serve(argv[2], argv[3]);
    fprintf(stderr, "usage: see the head of limits.c\n");
    return 2;
}
