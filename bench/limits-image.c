/* The limits that bench/convert compares all contenders with: the simplest loops that do only the unavoidable, one thread a
 * processor, no error handling beyond giving up.
 *
 *     limits-image read FILE             the data of FILE (not its holes), read and dropped
 *     limits-image copy FILE TARGET      the same, written to TARGET (made anew) where it was
 *     limits-image unpack FILE TARGET    the clusters of the qcow2 image FILE, unpacked where they are packed (zlib by
 *                                        libdeflate, zstd), written to TARGET as raw; no zero is looked for
 *     limits-image compare A B           the data of two raw files, read and compared where either has any
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define CHUNK (1 << 20)
#define UNIT (16 << 20) /* what a thread takes at a time */

static int source, target = -1, other = -1, unpacking;
static uint64_t size;
static _Atomic uint64_t next;

static struct {
    uint32_t cluster_bits, l1_size;
    uint64_t *l1;
    int zstd;
} image;

static void die(const char *what) {
    fprintf(stderr, "limits-image: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void read_all(int file, void *to, size_t length, uint64_t offset) {
    for (char *at = to; length > 0;) {
        ssize_t got = pread(file, at, length, (off_t)offset);
        if (got <= 0)
            die("pread");
        at += got, offset += (uint64_t)got, length -= (size_t)got;
    }
}

static void write_all(const void *from, size_t length, uint64_t offset) {
    for (const char *at = from; target >= 0 && length > 0;) {
        ssize_t put = pwrite(target, at, length, (off_t)offset);
        if (put <= 0)
            die("pwrite");
        at += put, offset += (uint64_t)put, length -= (size_t)put;
    }
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void move_range(char *buffer, uint64_t start, uint64_t end) {
    for (uint64_t at = start; at < end; at += CHUNK) {
        size_t length = least(CHUNK, end - at);
        read_all(source, buffer, length, at);
        if (other >= 0) {
            read_all(other, buffer + CHUNK, length, at);
            if (memcmp(buffer, buffer + CHUNK, length) != 0)
                exit(1);
        }
        write_all(buffer, length, at);
    }
}

static void move_unit(char *buffer, uint64_t start, uint64_t end) {
    for (uint64_t at = start; at < end;) {
        off_t data = lseek(source, (off_t)at, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= end)
            return;
        off_t hole = lseek(source, data, SEEK_HOLE);
        if (hole < 0)
            die("lseek");
        at = least((uint64_t)hole, end);
        move_range(buffer, (uint64_t)data, at);
    }
}

static void unpack(char *buffer, uint64_t entry, uint64_t at, struct libdeflate_decompressor *zlib, ZSTD_DCtx *zstd) {
    size_t cluster = (size_t)1 << image.cluster_bits, whole = least(cluster, size - at);
    char *packed = buffer + cluster;
    if (!(entry >> 62 & 1)) {
        uint64_t host = entry & 0x00fffffffffffe00u;
        if (host == 0 || entry & 1)
            return;
        read_all(source, buffer, whole, host);
    } else {
        unsigned bits = 62 - (image.cluster_bits - 8);
        uint64_t host = entry & ((1ull << bits) - 1), sectors = ((entry & ((1ull << 62) - 1)) >> bits) + 1;
        size_t length = sectors * 512 - (host & 511), used;
        ssize_t got = pread(source, packed, length, (off_t)host);
        if (got <= 0)
            die("pread");
        if (image.zstd) {
            ZSTD_inBuffer in = {packed, (size_t)got, 0};
            ZSTD_outBuffer out = {buffer, cluster, 0};
            ZSTD_DCtx_reset(zstd, ZSTD_reset_session_only);
            while (out.pos < cluster)
                if (ZSTD_isError(ZSTD_decompressStream(zstd, &out, &in)))
                    die("zstd");
        } else if (libdeflate_deflate_decompress_ex(zlib, packed, (size_t)got, buffer, cluster, &used, NULL) != LIBDEFLATE_SUCCESS) {
            die("zlib");
        }
    }
    write_all(buffer, whole, at);
}

static void unpack_unit(char *buffer, uint64_t *table, uint64_t start, uint64_t end, struct libdeflate_decompressor *zlib, ZSTD_DCtx *zstd) {
    size_t cluster = (size_t)1 << image.cluster_bits, entries = cluster / 8;
    for (uint64_t at = start; at < end; at += entries * cluster) {
        uint64_t l2 = be64toh(image.l1[at / cluster / entries]) & 0x00fffffffffffe00u;
        if (l2 == 0)
            continue;
        read_all(source, table, cluster, l2);
        for (size_t i = 0; i < entries && at + i * cluster < end; i++)
            if (table[i] != 0)
                unpack(buffer, be64toh(table[i]), at + i * cluster, zlib, zstd);
    }
}

static void *work(void *unused) {
    (void)unused;
    char *buffer = malloc(8 << 20);
    uint64_t *table = malloc(2 << 20), unit = UNIT;
    struct libdeflate_decompressor *zlib = libdeflate_alloc_decompressor();
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    if (unpacking)
        unit = (uint64_t)1 << (2 * image.cluster_bits - 3);
    for (;;) {
        uint64_t start = atomic_fetch_add(&next, unit);
        if (start >= size)
            return NULL;
        uint64_t end = least(start + unit, size);
        if (unpacking)
            unpack_unit(buffer, table, start, end, zlib, zstd);
        else
            move_unit(buffer, start, end);
    }
}

static void open_image(void) {
    unsigned char header[112];
    read_all(source, header, sizeof header, 0);
    uint32_t word;
    uint64_t l1;
    memcpy(&word, header + 20, 4), image.cluster_bits = be32toh(word);
    memcpy(&size, header + 24, 8), size = be64toh(size);
    memcpy(&word, header + 36, 4), image.l1_size = be32toh(word);
    memcpy(&l1, header + 40, 8), l1 = be64toh(l1);
    memcpy(&word, header + 4, 4);
    image.zstd = be32toh(word) >= 3 && header[104] == 1;
    image.l1 = malloc((size_t)image.l1_size * 8);
    read_all(source, image.l1, (size_t)image.l1_size * 8, l1);
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    source = open(words[2], O_RDONLY);
    if (source < 0)
        die(words[2]);
    size = (uint64_t)lseek(source, 0, SEEK_END);
    if ((unpacking = strcmp(words[1], "unpack") == 0))
        open_image();
    if (strcmp(words[1], "compare") == 0) {
        other = open(words[3], O_RDONLY);
    } else if (count > 3) {
        target = open(words[3], O_RDWR | O_CREAT, 0600); /* an existing target keeps its memory */
        if (target < 0 || ftruncate(target, (off_t)size) != 0)
            die(words[3]);
    }
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t thread[64];
    threads = threads > 64 ? 64 : threads;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, NULL) != 0)
            die("pthread_create");
    for (long i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
