/* SPDX-License-Identifier: Apache-2.0 */
/* The map as one SVG file. A rectangle shows its details when it is pointed at. */
#include <stdlib.h>
#include <string.h>

#include "format.h"
#include "map.h"

#define WIDTH  860 /* of the longest bar */
#define MARGIN 16
#define LABEL  190 /* left of a bar */
#define ROW    24
#define BAR    19 /* its height */
#define LETTER 7.0

static const char style[] =
    "<style>\n"
    "svg { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; background: #fff }\n"
    "text { fill: #1f2328 } .device { font-weight: bold } .pool { font-style: italic }\n"
    "rect { stroke: #fff } rect, .other { fill: #6e7781 } rect:hover { stroke: #d1242f; stroke-width: 2 }\n"
    ".array { fill: #0a58ca } .pending { fill: #b35900 } .dead { fill: #a40e26 }\n"
    ".free { fill: #d8dee4 } .in { fill: #fff; pointer-events: none }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "svg { background: #0d1117 } text { fill: #e6edf3 } rect { stroke: #0d1117 }\n"
    ".free { fill: #30363d }\n"
    "}\n"
    "</style>\n";

static void
put_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        default: putc(*text, out);
        }
}

/* The text is cut to the width, or left out where there is no room for some letters. */
static void
put_label(FILE *out, const char *class, double x, size_t y, double width, const char *text)
{
    _cleanup_free_ char *cut = format_cut(text, width > 0 ? (size_t)(width / LETTER) : 0);

    if (strcmp(cut, text) != 0 && format_width(cut) < 4)
        return;
    fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%zu\">", class, x, y + 14);
    put_text(out, cut);
    fputs("</text>\n", out);
}

static void
put_stretch(FILE *out, const struct map_rect *rect, double x, size_t y, double width)
{
    fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%zu\" width=\"%.2f\" height=\"%d\"><title>",
            map_classes[rect->class], x, y, width, BAR);
    put_text(out, rect->text);
    fputs("\n", out);
    put_text(out, rect->more);
    fputs("</title></rect>\n", out);
    if (rect->class != MAP_FREE)
        put_label(out, "in", x + 4, y, width - 8, rect->text);
}

static void
put_legend(FILE *out, size_t y)
{
    fprintf(
        out,
        "<text x=\"%d\" y=\"%zu\"><tspan class=\"array\">■</tspan> arrays "
        "<tspan class=\"free\">■</tspan> free <tspan class=\"pending\">■</tspan> to be freed "
        "<tspan class=\"dead\">■</tspan> nobody's, still in use "
        "<tspan class=\"other\">■</tspan> other</text>\n",
        MARGIN + LABEL, y);
}

void
map_write_svg(const struct map *map, FILE *out)
{
    size_t width = 2 * MARGIN + LABEL + WIDTH, height = 2 * MARGIN + ROW * (map->rows + 2);

    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%zu\" height=\"%zu\""
            " viewBox=\"0 0 %zu %zu\">\n%s",
            width, height, width, height, style);
    for (size_t i = 0; i < map->n; i++) {
        const struct map_rect *rect = &map->rects[i];
        size_t y = MARGIN + ROW * rect->row;
        if (rect->class > MAP_BLOCK)
            put_stretch(out, rect, MARGIN + LABEL + rect->x * WIDTH, y, rect->width * WIDTH);
        else
            put_label(out, map_classes[rect->class], MARGIN, y,
                      rect->class == MAP_BLOCK ? LABEL - LETTER : (double)width, rect->text);
    }
    put_legend(out, height - MARGIN);
    fputs("</svg>\n", out);
}
