/* SPDX-License-Identifier: Apache-2.0 */
/* The verb map: devices, pools, blocks and their ranges. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "format.h"
#include "map.h"
#include "report.h"

#define COLUMNS_DEFAULT 80

struct drawing {
    struct ctl *ctl;
    const struct caid_list_options *options;
    struct map map;
    int32_t device;
    uint64_t total; /* its bytes */
    char *pool;     /* of the last range, or NULL */
    uint64_t block;
};

/* The lines below a range's name. */
static char *
range_more(const struct ctl *ctl, const struct caid_details *d)
{
    const struct caid_entry *e = d->entry;
    _cleanup_free_ char *size = format_bytes(d->bytes, ctl->bytes);
    _cleanup_free_ char *offset = format_bytes(d->offset, ctl->bytes);
    _cleanup_free_ char *shape = format_shape(e->shape, e->ndim), *use = report_use(e);
    _cleanup_free_ char *user = format_user(e->uid), *type = format_plain(e->typestr);
    char *text = NULL;
    size_t n;

    FILE *out = open_memstream(&text, &n);
    if (!out)
        out_of_memory();
    fprintf(out, "%s, %s, %s into block %" PRIu64, d->state, size, offset, d->block);
    if (*type)
        fprintf(out, "\n%s %s, created by %s\nuse: %s", type, shape, user, use);
    if (d->held)
        fputs("\nheld back by connections of that user", out);
    for (size_t i = 0; i < d->n_holders; i++) {
        _cleanup_free_ char *holder = report_holder(d->holders[i]);
        _cleanup_free_ char *plain = format_plain(holder);
        fprintf(out, "\nheld by %s", plain);
    }
    if (d->n_holders < e->leases)
        fprintf(out, "\nheld by %" PRIu64 " more", e->leases - d->n_holders);
    if (fclose(out) != 0)
        out_of_memory();
    return text;
}

/* ---- the layout ---- */

static void
map_add_entry(struct map *map, struct map_rect rect_consume)
{
    if ((map->n & (map->n - 1)) == 0) /* full, or empty */
        map->rects = reallocarray(map->rects, map->n ? 2 * map->n : 1, sizeof(map->rects[0]));
    if (!map->rects)
        out_of_memory();
    map->rects[map->n++] = rect_consume;
}

/* Adds a heading in a row of its own. The text is made plain (format.h). */
static void
add_heading(struct map *map, enum map_class class, char *text_consume)
{
    map_add_entry(map,
                  (struct map_rect){class, map->rows++, .text = format_plain(text_consume)});
    free(text_consume);
}

static void
add_block(struct drawing *drawing, const struct caid_details *d)
{
    _cleanup_free_ char *size = format_bytes(d->block_size, drawing->ctl->bytes);
    const char *kind = strcmp(d->entry->memory, "device") == 0 ? "" : d->entry->memory;

    add_heading(&drawing->map, MAP_BLOCK,
                format_text("%" PRIu64 ": %s %s", d->block, size, kind));
    drawing->block = d->block;
}

/* The bit length of bytes in MiB, at least 1. */
static int
steps(uint64_t bytes)
{
    return 64 - __builtin_clzll(bytes >> 20 | 1);
}

/* Ranges come pool by pool, and block by block. The bar of a block is at least half as long as one
 * of the whole device. */
static int
add_range(const struct caid_details *d, void *userdata)
{
    struct drawing *drawing = userdata;
    int most = steps(drawing->total);
    double unit = (most + steps(d->block_size)) / (2.0 * most) / (double)d->block_size;
    enum map_class class = MAP_ARRAY;
    bool is_new = !drawing->pool || strcmp(drawing->pool, d->entry->pool) != 0;

    if (d->entry->device != drawing->device)
        return 0;
    if (is_new) {
        free(drawing->pool);
        drawing->pool = format_text("%s", d->entry->pool);
        add_heading(&drawing->map, MAP_POOL, format_text("%s", d->entry->pool));
    }
    if (is_new || d->block != drawing->block)
        add_block(drawing, d);
    while (class < MAP_OTHER && strcmp(map_classes[class], d->state) != 0)
        class ++;
    const char *name = *d->entry->name      ? d->entry->name
                       : class == MAP_ARRAY ? "(unnamed)"
                                            : d->state;
    map_add_entry(&drawing->map,
                  (struct map_rect){class, drawing->map.rows - 1, (double)d->offset * unit,
                                    (double)d->bytes * unit, format_plain(name),
                                    range_more(drawing->ctl, d)});
    return 0;
}

static int
add_device(struct drawing *drawing, int32_t index)
{
    struct ctl *ctl = drawing->ctl;
    struct caid_memory_info m = CAID_INIT(m);
    const struct caid_device *const *devices;

    caid_client_devices(ctl->client, &devices);
    if (caid_memory_info(ctl->client, index, &m, &ctl->error) < 0)
        return ctl_failed(ctl, devices[index]->uuid);
    _cleanup_free_ char *total = format_bytes(m.total, ctl->bytes);
    _cleanup_free_ char *used = format_bytes(m.used, ctl->bytes);
    _cleanup_free_ char *left = format_bytes(m.free, ctl->bytes);
    add_heading(&drawing->map, MAP_DEVICE,
                format_text("device %" PRId32 ", %s: %s, caid has %s, %s are free", index,
                            devices[index]->name, total, used, left));
    drawing->device = index;
    drawing->total = m.total;
    drawing->pool = (free(drawing->pool), NULL);
    if (caid_ranges(ctl->client, drawing->options, add_range, drawing, &ctl->error) < 0)
        return ctl_failed(ctl, ctl->pool ? ctl->pool : "map");
    return CTL_OK;
}

static void
drawing_deinit(struct drawing *drawing)
{
    for (size_t i = 0; i < drawing->map.n; i++) {
        free(drawing->map.rects[i].text);
        free(drawing->map.rects[i].more);
    }
    free(drawing->map.rects);
    free(drawing->pool);
}

/* ---- the output ---- */

static int
write_svg(const struct map *map, const char *path)
{
    FILE *out = fopen(path, "we");
    bool failed = !out;

    if (out) {
        map_write_svg(map, out);
        failed = ferror(out);
        failed |= fclose(out) != 0;
    }
    if (failed)
        ctl_complain(path, strerror(errno));
    return failed ? CTL_LOCAL : CTL_OK;
}

int
verb_map(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    struct caid_list_options options = CAID_INIT(options);
    _cleanup_(drawing_deinit) struct drawing drawing = {.ctl = ctl, .options = &options};
    struct winsize size = {.ws_col = COLUMNS_DEFAULT};
    const struct caid_device *const *devices;
    int32_t n = caid_client_devices(ctl->client, &devices);
    int status = CTL_OK;

    options.pool = ctl->pool;
    options.all = !ctl->pool;
    if (ctl->json) {
        json_object(&ctl->out, NULL);
        return report_end(ctl, report_ranges(ctl, "ranges", &options), NULL);
    }
    for (int32_t i = 0; i < n && status == CTL_OK; i++)
        status = add_device(&drawing, i);
    if (status != CTL_OK)
        return status;
    if (ctl->svg)
        return write_svg(&drawing.map, ctl->svg);
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    map_print(&drawing.map, size.ws_col);
    return CTL_OK;
}
