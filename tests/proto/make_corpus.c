/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_corpus [--check] FOLDER: writes the seeds of the fuzzer, a small and a full packet of every
 * message and packets of every kind that is refused, or says whether FOLDER has them as they
 * would be written. The seeds are in the tree, since a fuzzer starts from them.
 */
#include <stdio.h>

#include "sample.h"

struct output {
    const char *folder;
    bool check;
    bool failed;
};

static bool
is_same(const char *path, const void *data, size_t n)
{
    static uint8_t there[PROTO_PACKET_MAX + 1];
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    size_t n_there = fread(there, 1, sizeof(there), file);
    fclose(file);
    return n_there == n && memcmp(there, data, n) == 0;
}

static bool
write_file(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool written = fwrite(data, 1, n, file) == n;
    return fclose(file) == 0 && written;
}

static void
put_seed(struct output *out, const char *name, const void *data, size_t n)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", out->folder, name);
    if (out->check ? is_same(path, data, n) : write_file(path, data, n))
        return;
    fprintf(stderr, "%s: %s\n", path, out->check ? "missing or out of date" : "not written");
    out->failed = true;
}

static void
put_packet(struct output *out, const char *method, const char *what, int r,
           const struct msg_buf *b)
{
    char name[128];

    if (r < 0)
        abort();
    snprintf(name, sizeof(name), "%s-%s", method, what);
    put_seed(out, name, b->data, b->n);
}

static void
put_method(struct output *out, enum msg_method method, enum sample_mode mode)
{
    const struct method *entry = &proto_methods[method];
    const char *size = mode == SAMPLE_FULL ? "full" : "small";
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_(sampler_deinit) struct sampler s;
    char what[32];

    sampler_init(&s, method, mode);
    const void *params = sample_record(&s, entry->params);
    int r = entry->result ? msg_encode_request(&b, method, method, params)
                          : msg_encode_notify(&b, method, params);
    snprintf(what, sizeof(what), "params-%s", size);
    put_packet(out, entry->name, what, r, &b);
    if (!entry->result)
        return;
    r = msg_encode_result(&b, method, method, sample_record(&s, entry->result));
    snprintf(what, sizeof(what), "result-%s", size);
    put_packet(out, entry->name, what, r, &b);
}

static void
put_refused(struct output *out)
{
#define SEED(name, bytes)                         \
    {                                             \
        "refused-" name, bytes, sizeof(bytes) - 1 \
    }

    static const struct {
        const char *name, *bytes;
        size_t n;
    } seeds[] = {
        SEED("array-bomb", "\xdd\xff\xff\xff\xff"),
        SEED("map-bomb", "\xdf\xff\xff\xff\xff"),
        SEED("nested-bomb", "\xdd\x05\xf5\xe1\x00\xdd\x05\xf5\xe1\x00\xdd\x05\xf5\xe1\x00"),
        SEED("string-bomb", "\xdb\xff\xff\xff\xffx"),
        SEED("deep", "\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0"),
        SEED("repeated-key", "\x93\x02\xa5"
                             "close\x82\xa1x\x01\xa1x\x02"),
        SEED("number-key", "\x93\x02\xa5"
                           "close\x81\x01\x02"),
        SEED("overlong-utf8", "\x93\x02\xa2\xc0\x80\x80"),
        SEED("surrogate", "\x93\x02\xa3\xed\xa0\x80\x80"),
        SEED("bin", "\x93\x02\xa5"
                    "close\x81\xa6leases\xc4\x01x"),
        SEED("ext", "\x93\x02\xa5"
                    "close\x81\xa6leases\xd4\x01x"),
        SEED("float", "\x93\x02\xa5"
                      "close\x81\xa6leases\xca\x00\x00\x00\x00"),
        SEED("trailing", "\x94\x00\x00\xa4ping\x80\x00"),
        SEED("cut", "\x94\x00\x00\xa4ping"),
    };

    for (size_t i = 0; i < ARRAY_SIZE(seeds); i++)
        put_seed(out, seeds[i].name, seeds[i].bytes, seeds[i].n);
}

int
main(int argc, char **argv)
{
    struct output out = {.check = argc == 3 && strcmp(argv[1], "--check") == 0};
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};

    if (argc != 2 && !out.check) {
        fprintf(stderr, "usage: %s [--check] FOLDER\n", argv[0]);
        return 2;
    }
    out.folder = argv[argc - 1];
    for (uint32_t i = 0; i < MSG_N_METHODS; i++) {
        put_method(&out, (enum msg_method)i, SAMPLE_MINIMAL);
        put_method(&out, (enum msg_method)i, SAMPLE_FULL);
    }
    int r = msg_encode_error(&b, 1,
                             &(struct msg_error){.code = PROTO_ERR_DRIVER,
                                                 .text = MSG_STR("out of memory"),
                                                 .cuda = 2});
    put_packet(&out, "error", "full", r, &b);
    put_refused(&out);
    if (out.failed && out.check)
        fprintf(stderr, "write them again: %s %s\n", argv[0], out.folder);
    return out.failed;
}
