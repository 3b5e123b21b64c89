/* SPDX-License-Identifier: Apache-2.0 */
/* The map in a terminal. */
#include "map.h"

#include "format.h"

#define LABEL 28 /* columns left of a bar */

const char *const map_classes[] = {"device", "pool",    "block", "array",
                                   "free",   "pending", "dead",  "other"};

/* Headings are cut to the line. */
static void
print_text(const struct map_rect *rect, size_t columns)
{
    size_t indent = 2 * rect->class, most = rect->class == MAP_BLOCK ? LABEL - 1 : columns;
    _cleanup_free_ char *cut = format_cut(rect->text, most - indent);

    printf("%s%*s%s", rect->row > 0 ? "\n" : "", (int)indent, "", cut);
    if (rect->class == MAP_BLOCK)
        printf("%*s", (int)(LABEL - indent - format_width(cut)), "");
}

/* Prints a range, at least one column as long as there are columns left; with its text if that
 * fits. */
static size_t
print_stretch(const struct map_rect *rect, size_t filled, size_t columns)
{
    static const char *const glyphs[] = {[MAP_ARRAY] = "█",
                                         [MAP_FREE] = "·",
                                         [MAP_PENDING] = "▒",
                                         [MAP_DEAD] = "▓",
                                         [MAP_OTHER] = "░"};
    size_t end = (size_t)((rect->x + rect->width) * (double)columns + 0.5);
    size_t n = end > filled ? end - filled : filled < columns ? 1 : 0;
    _cleanup_free_ char *cut =
        format_cut(rect->text, n > 4 && rect->class != MAP_FREE ? n - 3 : 0);

    filled += n;
    if (*cut) {
        n -= format_width(cut) + 2;
        printf("▌%s ", cut);
    }
    while (n-- > 0)
        fputs(glyphs[rect->class], stdout);
    return filled;
}

void
map_print(const struct map *map, size_t columns)
{
    size_t filled = 0;

    if (columns < 2 * LABEL)
        columns = 2 * LABEL;
    for (size_t i = 0; i < map->n; i++) {
        const struct map_rect *rect = &map->rects[i];
        if (rect->class <= MAP_BLOCK)
            print_text(rect, columns);
        filled = rect->class <= MAP_BLOCK ? 0 : print_stretch(rect, filled, columns - LABEL);
    }
    puts("\n\n█ arrays  · free  ▒ to be freed  ▓ nobody's, still in use  ░ other");
}
